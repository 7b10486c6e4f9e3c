#pragma once

namespace holdfast::apps {

// `holdfast table`: lists a folder of saved tables, exports one of them to a file for other
// programs, imports such a file; with the arguments that follow the command. Exit code 1: something
// is damaged, refused or not possible, and it prints what; 2: a wrong command line.
int tables(int argc, const char* const* argv);

}  // namespace holdfast::apps
