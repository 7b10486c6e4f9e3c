#include "apps/table.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "apps/ask.h"
#include "apps/json.h"
#include "apps/shown.h"
#include "base/text.h"
#include "table/exporting.h"
#include "table/importing.h"
#include "table/listing.h"

namespace holdfast::apps {
namespace {

constexpr const char* kCommand = "holdfast table";

int refuse(const std::string& why) {
  return complain(shown(why), 1, kCommand);
}

Json json_of(const std::string& folder, const table::Listing& listing) {
  Json tables = Json::array();
  for (std::size_t t = 0; t < listing.tables.size(); ++t) {
    const table::Spec& spec = listing.saved.specs[t];
    const table::Listed& listed = listing.tables[t];
    tables.push_back({{"name", spec.name},
                      {"values", spec.values},
                      {"dtype", table::name_of(spec.type)},
                      {"optimizer", table::name_of(spec.optimizer.rule)},
                      {"rows", listed.rows},
                      {"bytes", listed.bytes},
                      {"updates", listed.updates},
                      {"files", listing.saved.files_of(t)},
                      {"problems", listed.problems}});
  }
  return {{"folder", folder},
          {"step", listing.saved.step},
          {"servers", listing.saved.servers},
          {"tables", tables}};
}

void print(const std::string& folder, const table::Listing& listing) {
  std::printf("%s: step %" PRIu64 ", saved by %s\n", shown(folder).c_str(), listing.saved.step,
              counted(listing.saved.servers, "server").c_str());
  using Row = std::array<std::string, 7>;
  std::vector<Row> rows{{"values", "dtype", "optimizer", "rows", "bytes", "updates", "table"}};
  for (std::size_t t = 0; t < listing.tables.size(); ++t) {
    const table::Spec& spec = listing.saved.specs[t];
    const table::Listed& listed = listing.tables[t];
    rows.push_back({cat(spec.values), table::name_of(spec.type),
                    table::name_of(spec.optimizer.rule), cat(listed.rows), cat(listed.bytes),
                    cat(listed.updates),
                    shown(spec.name) + (listed.problems.empty() ? "" : "  (damaged)")});
  }
  for (const auto& [values, dtype, optimizer, count, bytes, updates, name] : rows) {
    std::printf("%6s  %-8s  %-16s  %12s  %15s  %9s  %s\n", values.c_str(), dtype.c_str(),
                optimizer.c_str(), count.c_str(), bytes.c_str(), updates.c_str(), name.c_str());
  }
}

int list(const std::string& folder, bool verifies, bool json) {
  const auto listing = table::list(folder, verifies);
  if (!listing) return refuse(listing.error().what);
  if (json) {
    const auto text = json_of(folder, *listing).dump(2, ' ', false, Json::error_handler_t::replace);
    std::puts(text.c_str());
  } else {
    print(folder, *listing);
  }
  int code = 0;
  for (const table::Listed& listed : listing->tables) {
    for (const std::string& problem : listed.problems) code = refuse(problem);
  }
  if (verifies && code == 0 && !json) std::puts("All rows were read, and their digests are right.");
  return code;
}

int export_to(const std::string& folder, const std::string& name, const std::string& file,
              bool replaces) {
  const auto exported = table::export_table(folder, name, file, replaces);
  if (!exported) return refuse(exported.error().what);
  const table::Spec& spec = exported->spec;
  std::printf("%s has %s of table %s: `keys`, `rows` of %u values%s\n", shown(file).c_str(),
              counted(static_cast<std::int64_t>(exported->rows), "row").c_str(),
              shown(spec.name).c_str(), spec.values,
              spec.state_floats() > 0
                  ? cat(", `state` of ", table::name_of(spec.optimizer.rule)).c_str()
                  : "");
  return 0;
}

int import_from(const std::string& file, const std::string& folder, const std::string& name) {
  const auto imported = table::import_table(file, folder, name);
  if (!imported) return refuse(imported.error().what);
  std::string text = cat("Table ", imported->spec.name, " in ", folder, " has ",
                         counted(static_cast<std::int64_t>(imported->rows), "row"), " of ", file);
  if (imported->rows > 0) text += cat(", the greatest key ", imported->greatest_key);
  if (imported->is_rounded) text += ", rounded to bfloat16";
  text += imported->has_state
              ? cat(". Its optimizer goes on after ",
                    counted(static_cast<std::int64_t>(imported->updates), "update"))
              : ". Its optimizer begins anew: the first state in each row, 0 updates";
  std::puts(shown(text + ".").c_str());
  return 0;
}

}  // namespace

int tables(int argc, const char* const* argv) {
  CLI::App app("Looks into a folder of saved tables (hf.save_tables), and takes rows out and in.",
               kCommand);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done; 1 something is damaged or refused (said what); 2 wrong command line.\n"
      "Not while a job saves or loads there. docs/parameter-server.md tells more.");
  std::string folder, file, name;
  bool json = false, verifies = false, replaces = false;
  const auto is_dir = [&folder](CLI::App* one) {
    one->add_option("DIR", folder, "The folder that a job has saved in")->required();
  };
  auto* ls = app.add_subcommand("ls", "The tables: rows, bytes, optimizers, the step");
  is_dir(ls);
  ls->add_flag("--json", json, "As JSON");
  ls->add_flag("--verify", verifies, "Read all rows, and compare their digests");
  auto* out = app.add_subcommand("export", "Write a table to one file that safetensors reads");
  is_dir(out);
  out->add_option("FILE", file, "The new file: `keys` in ascending order, `rows`, `state`")
      ->required();
  out->add_option("--table", name, "Which one; needed where there are several");
  out->add_flag("--force", replaces, "Replace FILE if it is there");
  auto* in = app.add_subcommand("import", "Replace the rows of a table by those of a file");
  in->add_option("FILE", file,
                 "`keys` (I64), `rows` (F32 or BF16) and, if the optimizer is to go on, `state`")
      ->required();
  is_dir(in);
  in->add_option("--table", name, "The table whose rows are replaced; all others stay")->required();
  try {
    std::vector<const char*> words{kCommand};
    words.insert(words.end(), argv, argv + argc);
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const bool is_known = ls->parsed() || out->parsed() || in->parsed();
    return complain(is_known
                        ? error.what()
                        : "say what to do: ls DIR, export DIR FILE or import FILE DIR (--help)",
                    2, kCommand);
  }
  try {
    if (ls->parsed()) return list(folder, verifies, json);
    if (out->parsed()) return export_to(folder, name, file, replaces);
    return import_from(file, folder, name);
  } catch (const std::bad_alloc&) {
    return complain("there is too little memory for the keys of so many rows", 1, kCommand);
  }
}

}  // namespace holdfast::apps
