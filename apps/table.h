// `holdfast table`: looks into folders of saved tables, and takes rows out and in.
#pragma once

namespace holdfast::apps {

// Takes the arguments that follow the command. Returns the exit code: 0; 1: something is damaged,
// refused or not possible, and it prints what; 2: a wrong command line.
int tables(int argc, const char* const* argv);

}  // namespace holdfast::apps
