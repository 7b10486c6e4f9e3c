// Folder: neither another user nor a link leads it to files elsewhere.
#include "os/folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/text.h"
#include "os/testing.h"

namespace holdfast::os {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kOther = 65534;
constexpr const char* kAlone = " and is left alone; only that user or root can remove it";

bool is_root() {
  return ::geteuid() == 0;
}

std::string why_not(const Result<Folder>& opened) {
  return opened ? cat("opened ", opened->path()) : opened.error().what;
}

std::string content(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

// A folder "in", opened, beside "out" with a file "keep". In "in": links to both, a hard link, a
// FIFO, and a folder.
class Traps : public testing::Test {
 protected:
  Traps() {
    fs::create_directory(out_);
    std::ofstream(keep_) << "kept";
    auto made = Folder::make(in_);
    EXPECT_TRUE(made) << why_not(made);
    if (made) folder_ = *std::move(made);
    fs::create_symlink(keep_, in_ + "/link");
    fs::create_symlink(out_, in_ + "/link-to-folder");
    fs::create_hard_link(keep_, in_ + "/hard-link");
    EXPECT_EQ(::mkfifo((in_ + "/fifo").c_str(), 0600), 0);
    fs::create_directories(in_ + "/folder/in-it");
    fs::create_symlink(out_, in_ + "/folder/in-it/link");
  }

  const TemporaryFolder above_;
  const std::string in_ = above_ / "in";
  const std::string out_ = above_ / "out";
  const std::string keep_ = out_ + "/keep";
  Folder folder_;
};

TEST_F(Traps, NoneIsReadOrLocked) {
  for (const char* name : {"link", "link-to-folder", "hard-link", "fifo", "folder"}) {
    const auto bytes = folder_.read(name);
    ASSERT_FALSE(bytes) << name;
    EXPECT_EQ(bytes.error().what,
              cat(in_, '/', name, " is not a plain file of this user; remove it."));
    EXPECT_FALSE(folder_.lock(name)) << name;
    EXPECT_FALSE(folder_.is_locked(name)) << name;
  }
  EXPECT_FALSE(folder_.read("nothing"));
}

TEST_F(Traps, AreReplacedAndNotFollowedWhenOneWrites) {
  for (const char* name : {"link", "hard-link", "fifo"}) {
    ASSERT_TRUE(folder_.write(name, "new")) << name;
    EXPECT_EQ(*folder_.read(name), "new");
    struct stat about {};
    ASSERT_EQ(::lstat(cat(in_, '/', name).c_str(), &about), 0);
    EXPECT_EQ(about.st_mode, S_IFREG | 0600U) << name;
  }
  EXPECT_FALSE(folder_.write("folder", "new"));
  EXPECT_EQ(content(keep_), "kept");
}

TEST_F(Traps, AreRemovedAndNothingOutside) {
  EXPECT_TRUE(folder_.remove("link-to-folder"));
  EXPECT_TRUE(folder_.remove("link-to-folder")) << "nothing there is no error";
  EXPECT_FALSE(fs::is_symlink(in_ + "/link-to-folder"));
  EXPECT_TRUE(folder_.clear());
  EXPECT_TRUE(fs::is_empty(in_));
  EXPECT_EQ(content(keep_), "kept");
}

TEST_F(Traps, InThePlaceOfAFolderAreRefused) {
  for (const char* name : {"link", "link-to-folder"}) {
    EXPECT_EQ(why_not(folder_.sub(name)),
              cat(in_, '/', name, " is a link and is left alone; remove it"));
    EXPECT_FALSE(folder_.make_sub(name)) << name;
  }
  for (const char* name : {"hard-link", "fifo"}) {
    EXPECT_EQ(why_not(folder_.sub(name)),
              cat(in_, '/', name, " is no folder and is left alone; remove it"));
  }
  const auto missing = folder_.sub("nothing");
  EXPECT_TRUE(missing && !*missing);
  fs::permissions(in_ + "/folder", fs::perms{0710});
  EXPECT_EQ(why_not(folder_.sub("folder")),
            cat(in_,
                "/folder is open to other users and is left alone; remove it, or give it mode "
                "0700"));
  fs::permissions(in_ + "/folder", fs::perms{0755});
  EXPECT_EQ(why_not(Folder::open(in_ + "/folder", Folder::kWriting)),
            cat("opened ", in_, "/folder"));
  for (const unsigned mode : {0720U, 0702U}) {
    fs::permissions(in_ + "/folder", fs::perms{mode});
    EXPECT_NE(
        why_not(Folder::make(in_ + "/folder", Folder::kWriting)).find("is open to other users"),
        std::string::npos);
  }
}

// The folder is replaced by a link after it was opened.
TEST_F(Traps, DoNotCatchAFolderThatIsHeldOpen) {
  const std::string away = above_ / "away";
  fs::rename(in_, away);
  fs::create_symlink(out_, in_);
  ASSERT_TRUE(folder_.write("new", "new"));
  EXPECT_EQ(content(away + "/new"), "new");
  EXPECT_EQ(*folder_.read("new"), "new");
  EXPECT_FALSE(fs::exists(out_ + "/new"));
  ASSERT_TRUE(folder_.clear());
  EXPECT_TRUE(fs::is_empty(away));
  EXPECT_EQ(content(keep_), "kept");
  EXPECT_EQ(why_not(Folder::open(in_)), cat(in_, " is a link and is left alone; remove it"));
}

TEST(Folder, OfAnotherUserIsLeftAlone) {
  if (!is_root()) {  // Then root is the other user.
    EXPECT_EQ(why_not(Folder::open("/usr")), cat("/usr belongs to user 0", kAlone));
    return;
  }
  const TemporaryFolder folder;
  const std::string here = folder / "here";
  fs::create_directory(here);
  fs::permissions(folder.path(), fs::perms{0711});
  fs::permissions(here, fs::perms{01777});
  ASSERT_TRUE(Folder::make(folder / "mine"));
  std::ofstream(folder / "mine/keep") << "kept";
  const int made = as_user(kOther, [&] {
    const bool all = ::mkdir((here + "/theirs").c_str(), 0700) == 0 &&
                     ::mkdir((here + "/theirs/in-it").c_str(), 0700) == 0 &&
                     ::symlink((folder / "mine").c_str(), (here + "/link").c_str()) == 0 &&
                     !Folder::open(folder / "mine");
    return all ? 0 : 1;
  });
  ASSERT_EQ(made, 0);
  for (const char* name : {"/theirs", "/link"}) {
    const std::string refusal = cat(here, name, " belongs to user 65534", kAlone);
    EXPECT_EQ(why_not(Folder::open(here + name)), refusal);
    EXPECT_EQ(why_not(Folder::make(here + name)), refusal);
  }
  const auto mine = Folder::open(folder / "mine");
  ASSERT_TRUE(mine && *mine) << why_not(mine);
  fs::rename(here + "/theirs", folder / "mine/theirs");
  const auto cleared = mine->clear();
  ASSERT_FALSE(cleared);
  EXPECT_EQ(cleared.error().what, cat(folder / "mine/theirs", " belongs to user 65534", kAlone));
  EXPECT_TRUE(fs::exists(folder / "mine/theirs/in-it"));
}

}  // namespace
}  // namespace holdfast::os
