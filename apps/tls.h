// `holdfast tls`: makes certificates for trying TLS out, and checks those that there are.
#pragma once

namespace holdfast::apps {

// Takes the arguments that follow the command, and the variable `environ`. Returns the exit code:
// 0; 1 where something is refused or can not be made, which is said; 2: a wrong command line.
int tls(int argc, const char* const* argv, char** environment);

}  // namespace holdfast::apps
