# holdfast_torch: libtorch as one target, found in this order, and said which was taken:
#   1. -DHOLDFAST_TORCH_PATH=DIR  libtorch's own folder, or the CMake prefix of one
#   2. the `torch` that -DHOLDFAST_PYTHON=PYTHON, else python3, can import
#   3. Debian's libtorch-dev
include_guard(GLOBAL)
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)  # Examples and tests, in other folders, use them too.
set(torch_from "")
set(torch_prefix "")
if(HOLDFAST_TORCH_PATH)
  set(torch_from "HOLDFAST_TORCH_PATH")
  set(torch_prefix ${HOLDFAST_TORCH_PATH})
else()
  if(HOLDFAST_PYTHON)
    set(torch_python ${HOLDFAST_PYTHON})
  else()
    find_program(HOLDFAST_PYTHON3 python3)
    set(torch_python ${HOLDFAST_PYTHON3})
  endif()
  if(torch_python)
    execute_process(COMMAND ${torch_python} -c "import torch; print(torch.utils.cmake_prefix_path, torch.version.cuda, sep=';')"
      OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(torch_prefix)
    list(GET torch_prefix 1 torch_cuda)
    list(GET torch_prefix 0 torch_prefix)
    find_program(HOLDFAST_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(NOT torch_cuda STREQUAL None AND NOT HOLDFAST_NVCC)
      message(FATAL_ERROR "the torch of ${torch_python} is one with CUDA, which C++ can not use without CUDA's own "
        "development files: pip install torch --index-url https://download.pytorch.org/whl/cpu, name another Python "
        "(-DHOLDFAST_PYTHON=), or build without libtorch by -DHOLDFAST_TORCH=OFF")
    endif()
  endif()
  if(torch_prefix)
    set(torch_from "the torch of ${torch_python}")
  elseif(HOLDFAST_PYTHON)
    message(FATAL_ERROR "HOLDFAST_PYTHON is ${HOLDFAST_PYTHON}, but it cannot import torch: "
      "install it there, or leave HOLDFAST_PYTHON out to use Debian's libtorch-dev")
  endif()
endif()

# A build folder keeps what it found; another choice must be looked for anew.
if(DEFINED CACHE{HOLDFAST_TORCH_CHOICE} AND NOT HOLDFAST_TORCH_CHOICE STREQUAL "${torch_from}:${torch_prefix}")
  unset(Torch_DIR CACHE)
  unset(Caffe2_DIR CACHE)
  unset(TORCH_LIBRARY CACHE)
  unset(C10_LIBRARY CACHE)
endif()
set(HOLDFAST_TORCH_CHOICE "${torch_from}:${torch_prefix}" CACHE INTERNAL "Which libtorch was looked for")

if(torch_prefix)
  # First in every search: else its config takes Debian's Caffe2 and libraries where these are, too.
  get_filename_component(torch_root ${torch_prefix}/../.. ABSOLUTE)
  set(CMAKE_PREFIX_PATH ${torch_prefix} ${torch_root})
  find_package(Torch QUIET CONFIG PATHS ${torch_prefix} ${torch_prefix}/share/cmake NO_DEFAULT_PATH)
  if(NOT Torch_FOUND)
    message(FATAL_ERROR "no libtorch (TorchConfig.cmake) lies under ${torch_prefix}, which is "
      "${torch_from}: give -DHOLDFAST_TORCH_PATH=, or build without it by -DHOLDFAST_TORCH=OFF")
  endif()
else()
  find_package(Torch QUIET CONFIG)
  if(NOT Torch_FOUND)
    message(FATAL_ERROR "no libtorch was found: install Debian's libtorch-dev or a Python's torch "
      "(-DHOLDFAST_PYTHON=), or build without it by -DHOLDFAST_TORCH=OFF")
  endif()
  set(torch_from "Debian's libtorch-dev")
endif()
message(STATUS "libtorch: ${torch_from} (${TORCH_INSTALL_PREFIX})")
set_property(GLOBAL PROPERTY HOLDFAST_TORCH_FOLDER ${Torch_DIR})  # For cmake/install.cmake.
set_property(GLOBAL PROPERTY HOLDFAST_TORCH_ROOT ${TORCH_INSTALL_PREFIX})
set_property(GLOBAL PROPERTY HOLDFAST_TORCH_VERSION ${Torch_VERSION})

add_library(holdfast_torch INTERFACE)
# SYSTEM: torch's headers do not pass our warnings.
target_include_directories(holdfast_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(holdfast_torch INTERFACE ${TORCH_LIBRARIES})
separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(holdfast_torch INTERFACE ${torch_flags})

# holdfast_use_torch(NAME): compiles the sources of a target as one. To read torch/torch.h and to instantiate
# what it asks for takes half a minute, once for each file, and a precompiled header saves only the reading.
function(holdfast_use_torch name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_compile_options(${name} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)  # GCC takes each of them for a header.
endfunction()
