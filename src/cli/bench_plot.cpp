#include "cli/bench_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace calla::cli {
namespace {

constexpr int width = 960;
constexpr int height = 440;
constexpr double panel_width = 380;
constexpr double panel_top = 112;
constexpr double panel_height = 252;
constexpr std::string_view measured_color = "#0b6bcb";
constexpr std::string_view bound_color = "#c2410c";
constexpr std::array<std::string_view, 4> other_colors{"#6e7781", "#8250df", "#1a7f37", "#9a6700"};

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string context_label(int context) {
  return context >= 1024 && context % 1024 == 0 ? fmt::format("{}K", context / 1024)
                                                : fmt::format("{}", context);
}

struct Curve {
  std::string_view name;
  std::string_view color;
  bool dashed = false;
  std::vector<SpeedPoint> points;  // by context
};

struct Panel {
  double left = 0;
  std::string_view title;
  std::vector<Curve> curves;
};

/// The contexts of all curves, ascending.
std::vector<int> contexts_of(const Panel& panel) {
  std::vector<int> contexts;
  for (const Curve& curve : panel.curves) {
    for (const SpeedPoint& point : curve.points) contexts.push_back(point.context);
  }
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  return contexts;
}

/// Where contexts and speeds lie in a panel.
class Axes {
 public:
  explicit Axes(const Panel& panel) : left_(panel.left), contexts_(contexts_of(panel)) {
    double largest = 0;
    for (const Curve& curve : panel.curves) {
      for (const SpeedPoint& point : curve.points) largest = std::max(largest, point.speed);
    }
    ticks_ = round_ticks(largest);
    // Half a doubling of air on both sides.
    low_ = std::log2(contexts_.front()) - 0.5;
    high_ = std::log2(contexts_.back()) + 0.5;
  }

  double x(int context) const { return left_ + (std::log2(context) - low_) / (high_ - low_) * panel_width; }
  double y(double speed) const { return panel_top + panel_height * (1 - speed / ticks_.back()); }
  const std::vector<int>& contexts() const { return contexts_; }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  double left_;
  std::vector<int> contexts_;
  double low_ = 0;
  double high_ = 0;
  std::vector<double> ticks_;
};

std::string frame(const Panel& panel, const Axes& axes) {
  std::string svg = fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"head\">{}</text>\n", panel.left,
                                panel_top - 16, panel.title);
  for (const double tick : axes.ticks()) {
    const double y = axes.y(tick);
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n",
                       panel.left, y, panel.left + panel_width, y, tick == 0 ? "axis" : "grid");
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"tick\" text-anchor=\"end\">{:g}</text>\n",
                       panel.left - 8, y + 4, tick);
  }
  const double bottom = panel_top + panel_height;
  double last = -1e9;
  for (const int context : axes.contexts()) {
    const double x = axes.x(context);
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"axis\"/>\n", x,
                       bottom, x, bottom + 4);
    if (x - last < 34) continue;  // the label would touch the one before
    last = x;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"tick\" text-anchor=\"middle\">{}</text>\n", x,
                       bottom + 20, context_label(context));
  }
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"label\" text-anchor=\"middle\">context, tokens</text>\n",
      panel.left + panel_width / 2, bottom + 42);
  return svg;
}

std::string draw(const Curve& curve, const Axes& axes) {
  std::string places;
  for (const SpeedPoint& point : curve.points)
    places += fmt::format("{:.1f},{:.1f} ", axes.x(point.context), axes.y(point.speed));
  std::string svg = fmt::format("<polyline points=\"{}\" class=\"curve\" stroke=\"{}\"{}/>\n", places,
                                curve.color, curve.dashed ? " stroke-dasharray=\"7 5\"" : "");
  // A dashed line of one point would not be seen.
  if (curve.dashed && curve.points.size() > 1) return svg;
  for (const SpeedPoint& point : curve.points) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", axes.x(point.context),
                       axes.y(point.speed), curve.color);
  }
  return svg;
}

/// Right of the title, up to the picture's right edge.
std::string legend(const std::vector<Curve>& curves) {
  constexpr double line = 26;
  constexpr double gap = 6;
  constexpr double between = 18;
  constexpr double letter = 6.2;  // at a size of 11
  constexpr double y = 32;
  const auto width_of = [](const Curve& curve) {
    return line + gap + letter * static_cast<double>(curve.name.size());
  };
  double left = width - 24 + between;
  for (const Curve& curve : curves) left -= width_of(curve) + between;
  std::string svg;
  for (const Curve& curve : curves) {
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"curve\" stroke=\"{}\"{}/>\n"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"tick\">{}</text>\n",
        left, y, left + line, y, curve.color, curve.dashed ? " stroke-dasharray=\"7 5\"" : "",
        left + line + gap, y + 4, escaped(curve.name));
    left += width_of(curve) + between;
  }
  return svg;
}

}  // namespace

std::vector<double> round_ticks(double largest) {
  if (!(largest > 0)) return {0, 1};
  const double decade = std::pow(10, std::floor(std::log10(largest)));
  double step = decade;
  for (const double part : {0.2, 0.5, 1.0, 2.0}) {
    step = decade * part;
    if (largest / step <= 6) break;
  }
  const int count = static_cast<int>(std::ceil(largest / step - 1e-9));
  std::vector<double> ticks;
  for (int i = 0; i <= count; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string bench_plot(const BenchReport& report, std::span<const OtherSpeeds> beside) {
  Curve prefill{.name = "measured", .color = measured_color, .points = {}};
  Curve decode = prefill;
  Curve bound{.name = "bound: memory reads", .color = bound_color, .dashed = true, .points = {}};
  for (const BenchRow& row : report.rows) {
    prefill.points.push_back({row.context, prefill_rate(report, row)});
    decode.points.push_back({row.context, decode_rate(report, row) * report.batch});
    bound.points.push_back({row.context, decode_bound(report, row) * report.batch});
  }
  Panel left{.left = 64, .title = "Prefill, tokens per second", .curves = {}};
  Panel right{
      .left = 548,
      .title = report.batch > 1 ? "Decode, tokens per second of all slots" : "Decode, tokens per second",
      .curves = {bound}};
  std::vector<Curve> legend_curves{decode, bound};
  for (std::size_t i = 0; i < beside.size(); ++i) {
    Curve curve{.name = beside[i].name, .color = other_colors[i % other_colors.size()], .points = {}};
    legend_curves.push_back(curve);
    curve.points = beside[i].prefill;
    left.curves.push_back(curve);
    curve.points = beside[i].decode;
    right.curves.push_back(curve);
  }
  // Drawn last, so that it lies above.
  left.curves.push_back(std::move(prefill));
  right.curves.push_back(std::move(decode));

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n"
      "<style>.title {{ font-size: 17px; font-weight: 600; fill: #1f2328 }} .head {{ font-size: 13px; "
      "font-weight: "
      "600; fill: #1f2328 }} .label {{ font-size: 12px; fill: #57606a }} .tick {{ font-size: 11px; fill: "
      "#57606a }} "
      ".grid {{ stroke: #e4e8ec }} .axis {{ stroke: #8c959f }} .curve {{ fill: none; stroke-width: 2; "
      "stroke-linejoin: round }}</style>\n"
      "<rect x=\"0.5\" y=\"0.5\" width=\"{2}\" height=\"{3}\" rx=\"8\" fill=\"#ffffff\" "
      "stroke=\"#d0d7de\"/>\n",
      width, height, width - 1, height - 1);
  svg += fmt::format("<text x=\"24\" y=\"36\" class=\"title\">{}</text>\n", escaped(report.model));
  svg +=
      fmt::format("<text x=\"24\" y=\"57\" class=\"label\">{}; {}, {:.1f} GB/s of reads; {} slot{}</text>\n",
                  escaped(report.device), escaped(report.processor), report.read_bandwidth / 1e9,
                  report.batch, report.batch == 1 ? "" : "s");
  for (const Panel& panel : {left, right}) {
    const Axes axes(panel);
    svg += frame(panel, axes);
    for (const Curve& curve : panel.curves) svg += draw(curve, axes);
  }
  svg += legend(legend_curves);
  return svg + "</svg>\n";
}

}  // namespace calla::cli
