// Writes SVG: shapes and texts, without scripts or external resources. All texts are escaped.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::apps::timeline {

// printable(), with XML's special characters escaped as well.
std::string escaped(std::string_view text);

// The number with at most two digits after the point.
std::string coordinate(double value);

// About how wide a text is, whichever of the fonts is there.
double text_width(std::string_view text, double size);

class Svg {
 public:
  // `style`: further attributes. It is not escaped, so it must not contain text from traces.
  void rect(double x, double y, double width, double height, std::string_view style,
            std::string_view tooltip = {});
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  void path(std::string_view commands, std::string_view style);
  void cross(double x, double y, double radius, std::string_view tooltip);
  void text(double x, double y, std::string_view words, double size, std::string_view style = {});

  // The whole picture.
  [[nodiscard]] std::string finish(double width, double height, std::string_view title) const;
  // As an element of an HTML page, whose style sheet says how it looks. `name`: its class.
  [[nodiscard]] std::string within_page(double width, double height, std::string_view title,
                                        std::string_view name) const;

 private:
  std::string body_;
};

}  // namespace holdfast::apps::timeline
