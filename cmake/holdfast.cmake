# holdfast_library(NAME SOURCES ... LINKS ...), holdfast_program(...), holdfast_test(...): the only
# ways in which a target of ours is made; they carry the warnings, the sanitizers and the include root.
add_library(holdfast_flags INTERFACE)
target_include_directories(holdfast_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(holdfast_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wno-missing-field-initializers
  -Werror -fno-math-errno -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 takes a moved-from alternative of std::variant for an uninitialised one.
  target_compile_options(holdfast_flags INTERFACE -Wno-maybe-uninitialized)
  if(CMAKE_UNITY_BUILD)  # Where sources are compiled as one, GCC takes each of them for a header.
    target_compile_options(holdfast_flags INTERFACE -Wno-subobject-linkage)
  endif()
endif()
if(HOLDFAST_SANITIZE)
  target_compile_options(holdfast_flags INTERFACE -fsanitize=${HOLDFAST_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(holdfast_flags INTERFACE -fsanitize=${HOLDFAST_SANITIZE})
  target_compile_definitions(holdfast_flags INTERFACE HOLDFAST_SANITIZED=1)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(holdfast_flags INTERFACE -Wno-tsan)  # Fences: not modelled by TSan.
  else()  # Ten times as fast as the usual linker, which takes a seventh of such a build.
    find_program(HOLDFAST_LLD ld.lld-14)
    if(HOLDFAST_LLD)
      target_link_options(holdfast_flags INTERFACE -fuse-ld=lld-14)
    endif()
  endif()
endif()

function(holdfast_library name)
  cmake_parse_arguments(A "" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_link_libraries(${name} PUBLIC ${A_LINKS} PRIVATE holdfast_flags)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

function(holdfast_program name)
  cmake_parse_arguments(A "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LINKS} holdfast_flags)
  if(HOLDFAST_BUNDLED)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# What has no threads: TSan can see nothing there. (Of base, wire and core tools/pure proves it on the object code.)
# Their tests, and the simulator, are targets that nobody builds for it.
set(HOLDFAST_WITHOUT_THREADS base wire core sim config tests/transcripts tests/tapes)

# holdfast_untested(VARIABLE): whether what the current folder tests is not to be built.
function(holdfast_untested variable)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT HOLDFAST_TESTS OR (HOLDFAST_SANITIZE MATCHES "thread" AND folder IN_LIST HOLDFAST_WITHOUT_THREADS))
    set(${variable} ON PARENT_SCOPE)
  else()
    set(${variable} OFF PARENT_SCOPE)
  endif()
endfunction()

# A test program of GoogleTest; one entry for ctest. LABELS: e.g. chaos, nightly. TIMEOUT in seconds. ALONE: with no
# other test beside it, but for what BESIDE, a filter of GoogleTest's, names. FIRST: it is long and begins before the
# others, so that no core waits for it at the end.
function(holdfast_test name)
  cmake_parse_arguments(A "ALONE;FIRST" "TIMEOUT;BESIDE" "SOURCES;LINKS;LABELS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LINKS} holdfast_flags GTest::gtest GTest::gtest_main)
  # More than half the time of compiling a test is that of making its code fast. What it tests is as ever.
  target_compile_options(${name} PRIVATE -O0)
  holdfast_untested(untested)
  if(untested)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  set(cost 0)
  if(A_FIRST)
    set(cost 100)
  endif()
  if(A_BESIDE)
    add_test(NAME ${name}_beside COMMAND ${name} --gtest_filter=${A_BESIDE})
    set_tests_properties(${name}_beside PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}" COST ${cost})
    add_test(NAME ${name} COMMAND ${name} --gtest_filter=-${A_BESIDE})
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} RUN_SERIAL ${A_ALONE} LABELS "${A_LABELS}" COST ${cost})
endfunction()
