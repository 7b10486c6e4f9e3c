// Whether a test writes what it compares with anew: --rewrite.
#pragma once

namespace holdfast::transcripts {

extern bool rewrite;

}  // namespace holdfast::transcripts
