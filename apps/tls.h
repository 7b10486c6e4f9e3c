// `holdfast tls`: makes certificates for trying TLS out (new), and checks existing ones (check).
#pragma once

namespace holdfast::apps {

// Takes the arguments that follow the command, and the variable `environ`. Returns the exit code:
// 0; 1: something is refused or can not be made; 2: a wrong command line. Prints what is wrong.
int tls(int argc, const char* const* argv, char** environment);

}  // namespace holdfast::apps
