// Folder: an open folder that belongs to this user alone. All that is done in it goes through its
// descriptor and follows no link. So a user who can write above the folder can not turn it against
// this user. Thread-safe; errors name the path.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "os/fd.h"
#include "os/files.h"

namespace holdfast::os {

class [[nodiscard]] Folder {
 public:
  Folder() = default;

  // Opens the folder. Empty if nothing has this name. Errors: it is a link, or no folder, or
  // another user's, or other users have rights of `refused` in it. `path` may have links above its
  // last component.
  static Result<Folder> open(const std::string& path, mode_t refused = kAnyRight);
  static constexpr mode_t kAnyRight = 077;
  static constexpr mode_t kWriting = 022;  // Some file systems have their own idea of other rights.
  // open() for a folder in this one.
  [[nodiscard]] Result<Folder> sub(const std::string& name) const;
  // open() and sub(), but if nothing has this name, they make the folder.
  static Result<Folder> make(const std::string& path, mode_t refused = kAnyRight);
  [[nodiscard]] Result<Folder> make_sub(const std::string& name) const;

  explicit operator bool() const { return static_cast<bool>(fd_); }
  [[nodiscard]] int get() const { return fd_.get(); }
  // For messages, and for callers that open files by path and check them themselves.
  [[nodiscard]] const std::string& path() const { return path_; }

  // The sorted names of all that is in it. Empty if it can not be read.
  [[nodiscard]] std::vector<std::string> names() const;

  // A file in it, if open_own_file() (os/files.h) accepts it.
  [[nodiscard]] Result<std::string> read(const std::string& name) const;
  // read(), but nullopt if nothing has this name, or if this is no open folder.
  [[nodiscard]] Result<std::optional<std::string>> read_if_there(const std::string& name) const;
  // As write_file_atomically() and write_locked_file() (os/files.h).
  [[nodiscard]] Status write(const std::string& name, std::string_view bytes) const;
  [[nodiscard]] Result<Fd> write_locked(const std::string& name, std::string_view bytes) const;

  // Makes the names in this folder durable.
  [[nodiscard]] Status sync() const;

  // Locks a file until the descriptor is closed or this process has ended. Empty if another process
  // holds the lock, or if there can be none.
  [[nodiscard]] Fd lock(const std::string& name) const;
  // Whether any process holds the file's lock. This tells of processes in other PID namespaces too.
  [[nodiscard]] bool is_locked(const std::string& name) const;
  // Waits until no other process holds the folder's own lock, and takes it. Empty if there can be
  // none.
  [[nodiscard]] Fd wait_for_lock() const;

  // Removes a file, or a folder with all in it. A link is removed, and what it leads to stays. So
  // do folders of other users and of other file systems; that is an error. It is no error if
  // nothing has this name.
  [[nodiscard]] Status remove(const std::string& name) const;
  // Removes all that is in this folder, in the same way.
  [[nodiscard]] Status clear() const;

 private:
  Folder(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  static Result<Folder> open_at(int above, const std::string& name, const std::string& path,
                                mode_t refused = kAnyRight);
  static Result<Folder> make_at(int above, const std::string& name, const std::string& path,
                                mode_t refused = kAnyRight);
  [[nodiscard]] FileName file(const std::string& name) const { return {get(), path_, name}; }

  Fd fd_;
  std::string path_;
};

}  // namespace holdfast::os
