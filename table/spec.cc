#include "table/spec.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "base/text.h"

namespace holdfast::table {
namespace {

using Rule = Optimizer::Rule;

constexpr std::string_view kTitle = "holdfast tables\n";
constexpr std::size_t kMostNameBytes = 255;

// A number of a specification by its name, for checks, texts and differences alike.
struct Number {
  const char* name;
  double Optimizer::*of;
  double least;
  double most;  // Not reached, where it is 1.
};
constexpr double kAny = 1e30;
constexpr Number kNumbers[] = {
    {"momentum", &Optimizer::momentum, 0, kAny},
    {"beta1", &Optimizer::beta1, 0, 1},
    {"beta2", &Optimizer::beta2, 0, 1},
    {"epsilon", &Optimizer::epsilon, 0, kAny},
    {"l1", &Optimizer::l1, 0, kAny},
    {"l2", &Optimizer::l2, 0, kAny},
    {"power", &Optimizer::power, -kAny, 0},
    {"initial accumulator", &Optimizer::initial_accumulator, 0, kAny},
};

Error refused(const Spec& spec, const std::string& why) {
  return {Blame::kUser, cat("table ", spec.name.empty() ? "without a name" : spec.name, ": ", why)};
}

// Exactly, and whatever the locale.
std::string text_of(double number, std::chars_format format = std::chars_format::hex) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number, format);
  return {text, end};
}

// As a person reads it.
std::string told(double number) {
  return text_of(number, std::chars_format::general);
}

// Names stand in files and in what people are shown, which is JSON.
bool is_utf8(const std::string& name) {
  const nlohmann::json text = name;
  using Handler = nlohmann::json::error_handler_t;
  return text.dump(-1, ' ', false, Handler::ignore) == text.dump(-1, ' ', false, Handler::replace);
}

Status check(const Spec& spec) {
  if (!is_utf8(spec.name)) return {Error{Blame::kUser, "a table's name has to be UTF-8"}};
  if (spec.name.empty() || spec.name.size() > kMostNameBytes ||
      spec.name.find('\n') != std::string::npos) {
    return refused(spec, cat("a name has 1 to ", kMostNameBytes, " bytes, and one line"));
  }
  if (spec.values < 1 || spec.values > kMostValues) {
    return refused(spec, cat("a row has 1 to ", kMostValues, " values, not ", spec.values));
  }
  for (const Number& number : kNumbers) {
    const double value = spec.optimizer.*number.of;
    const bool is_in =
        value >= number.least && (number.most == 1 ? value < 1 : value <= number.most);
    if (is_in) continue;
    return refused(spec, cat("its optimizer's ", number.name, " can not be ", told(value)));
  }
  const Optimizer& o = spec.optimizer;
  if (o.rule == Rule::kAdamW && o.formula == Formula::kMindSpore) {
    return refused(spec, "AdamW has PyTorch's formula; MindSpore's mint.optim.AdamW is the same");
  }
  if (o.rule == Rule::kFtrl && o.power != -0.5) {
    return refused(spec, cat("FTRL's power is -0.5, not ", told(o.power)));
  }
  const bool divides = o.rule == Rule::kAdagrad || o.rule == Rule::kRowAdagrad;
  if (divides && o.epsilon == 0 && o.initial_accumulator == 0) {
    return refused(spec, "Adagrad needs an epsilon or an initial accumulator above 0");
  }
  const Initial& initial = spec.initial;
  const bool is_number = std::isfinite(initial.a) && std::isfinite(initial.b);
  const bool is_range = initial.kind == Initial::Kind::kUniform && initial.b < initial.a;
  const bool is_negative = initial.kind == Initial::Kind::kNormal && initial.b < 0;
  if (is_number && !is_range && !is_negative) return {};
  return refused(spec, cat("its rows can not begin with ", told(initial.a), " and ",
                           told(initial.b), ": a range ascends, and a deviation is not negative"));
}

std::string difference(const Spec& there, const Spec& here) {
  if (there.name != here.name) return cat("is ", there.name, " there and ", here.name, " here");
  const auto differs = [](const char* what, const auto& a, const auto& b) {
    return cat("has ", what, " ", a, " there and ", b, " here");
  };
  if (there.values != here.values) {
    return cat("has ", there.values, " values in a row there and ", here.values, " here");
  }
  if (there.type != here.type) {
    return differs("rows of", name_of(there.type), name_of(here.type));
  }
  if (there.optimizer.rule != here.optimizer.rule) {
    return differs("the optimizer", name_of(there.optimizer.rule), name_of(here.optimizer.rule));
  }
  for (const Number& number : kNumbers) {
    const double a = there.optimizer.*number.of;
    const double b = here.optimizer.*number.of;
    if (a != b) return differs(number.name, told(a), told(b));
  }
  if (!(there.optimizer == here.optimizer)) return "has another form of its optimizer";
  if (there.seed != here.seed) return differs("the seed", there.seed, here.seed);
  return there == here ? "" : "has rows that begin with other values";
}

}  // namespace

std::size_t Spec::state_floats() const {
  switch (optimizer.rule) {
    case Rule::kSgd:
      return 0;
    case Rule::kRowAdagrad:
      return 1;
    case Rule::kMomentum:
    case Rule::kAdagrad:
      return values;
    case Rule::kAdam:
    case Rule::kAdamW:
    case Rule::kFtrl:
      return 2 * std::size_t{values};
  }
  return 0;
}

std::size_t Spec::value_bytes() const {
  return values * (type == Type::kFloat32 ? sizeof(float) : sizeof(std::uint16_t));
}
std::size_t Spec::state_offset() const {
  return (value_bytes() + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}
std::size_t Spec::row_bytes() const {
  return state_offset() + state_floats() * sizeof(float);
}

Status check(std::span<const Spec> specs) {
  if (specs.size() > kMostTables) {
    return Error{Blame::kUser,
                 cat("a server has at most ", kMostTables, " tables, not ", specs.size())};
  }
  std::set<std::string> names;
  for (const Spec& spec : specs) {
    if (Status is_good = check(spec); !is_good) return is_good;
    if (!names.insert(spec.name).second) return refused(spec, "another table has the same name");
  }
  return {};
}

std::string to_text(std::span<const Spec> specs) {
  std::string text = cat(kTitle, specs.size(), '\n');
  for (const Spec& s : specs) {
    const Optimizer& o = s.optimizer;
    text += cat(s.name, '\n', s.values, ' ', unsigned(s.type), ' ', s.seed, ' ', unsigned(o.rule),
                ' ', unsigned(o.formula), ' ', unsigned(o.nesterov), ' ', unsigned(s.initial.kind),
                ' ', text_of(s.initial.a), ' ', text_of(s.initial.b));
    for (const Number& number : kNumbers) text += cat(' ', text_of(o.*number.of));
    text += '\n';
  }
  return text;
}

bool from_text(const std::string& text, std::vector<Spec>& out) {
  std::istringstream in(text);
  std::size_t count = 0;
  out.clear();
  in.ignore(kTitle.size()) >> count;
  const auto number = [&in] {
    std::string word;
    double value = 0;
    in >> word;
    (void)std::from_chars(word.data(), word.data() + word.size(), value, std::chars_format::hex);
    return value;
  };
  for (std::size_t i = 0; i < count && i < kMostTables && in; ++i) {
    Spec s;
    unsigned type = 0, rule = 0, formula = 0, nesterov = 0, kind = 0;
    in.ignore();
    std::getline(in, s.name);
    in >> s.values >> type >> s.seed >> rule >> formula >> nesterov >> kind;
    s.type = static_cast<Type>(type);
    s.optimizer.rule = static_cast<Rule>(rule);
    s.optimizer.formula = static_cast<Formula>(formula);
    s.optimizer.nesterov = nesterov != 0;
    s.initial.kind = static_cast<Initial::Kind>(kind);
    s.initial.a = number();
    s.initial.b = number();
    for (const Number& each : kNumbers) s.optimizer.*each.of = number();
    const bool is_known = type <= unsigned(Type::kBfloat16) && rule <= unsigned(Rule::kFtrl) &&
                          formula <= unsigned(Formula::kMindSpore) &&
                          kind <= unsigned(Initial::Kind::kNormal);
    if (!is_known) return false;
    out.push_back(std::move(s));
  }
  return check(out) && to_text(out) == text;
}

std::string name_of(Type type) {
  return type == Type::kFloat32 ? "float32" : "bfloat16";
}

std::string name_of(Optimizer::Rule rule) {
  constexpr const char* kNames[] = {"SGD",  "momentum", "Adagrad", "row-wise Adagrad",
                                    "Adam", "AdamW",    "FTRL"};
  return kNames[static_cast<std::size_t>(rule)];
}

std::string difference(std::span<const Spec> there, std::span<const Spec> here) {
  if (there.size() != here.size()) {
    return cat("there are ", there.size(), " tables there and ", here.size(), " here");
  }
  for (std::size_t i = 0; i < there.size(); ++i) {
    const std::string found = difference(there[i], here[i]);
    if (!found.empty()) return cat("table ", there[i].name, " ", found);
  }
  return "";
}

}  // namespace holdfast::table
