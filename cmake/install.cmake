# `cmake --install`: the headers, libholdfast.so (holdfast::c), libholdfast_train.so (holdfast::train, where
# libtorch was found), msrun and holdfast; and what find_package(holdfast) reads.
if(NOT HOLDFAST_INSTALL)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(holdfast_cmake ${CMAKE_INSTALL_LIBDIR}/cmake/holdfast)

install(TARGETS msrun holdfast holdfast-server RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(HOLDFAST_TORCH)
  install(DIRECTORY include/holdfast DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(TARGETS holdfast_train_shared EXPORT train LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT train NAMESPACE holdfast:: FILE train.cmake DESTINATION ${holdfast_cmake})
else()
  install(FILES include/holdfast/c.h include/holdfast/cluster.h include/holdfast/failure.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/holdfast)
endif()
install(TARGETS holdfast_shared EXPORT c LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT c NAMESPACE holdfast:: FILE c.cmake DESTINATION ${holdfast_cmake})

get_property(torch_folder GLOBAL PROPERTY HOLDFAST_TORCH_FOLDER)
get_property(torch_root GLOBAL PROPERTY HOLDFAST_TORCH_ROOT)
get_property(torch_version GLOBAL PROPERTY HOLDFAST_TORCH_VERSION)
configure_package_config_file(cmake/config.cmake.in ${PROJECT_BINARY_DIR}/holdfast-config.cmake
  INSTALL_DESTINATION ${holdfast_cmake})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/holdfast-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/holdfast-config.cmake
  ${PROJECT_BINARY_DIR}/holdfast-config-version.cmake DESTINATION ${holdfast_cmake})
