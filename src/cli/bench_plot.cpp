#include "cli/bench_plot.h"

#include <algorithm>
#include <cmath>
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
  std::string_view color;
  bool dashed = false;
  std::vector<double> values;  // one a row of the report
};

struct Panel {
  double left = 0;
  std::string_view title;
  std::vector<Curve> curves;
};

/// Where contexts and values lie in a panel.
class Axes {
 public:
  Axes(const BenchReport& report, const Panel& panel) : left_(panel.left) {
    double largest = 0;
    for (const Curve& curve : panel.curves) {
      for (const double value : curve.values) largest = std::max(largest, value);
    }
    ticks_ = round_ticks(largest);
    // Half a doubling of air on both sides.
    low_ = std::log2(report.rows.front().context) - 0.5;
    high_ = std::log2(report.rows.back().context) + 0.5;
  }

  double x(int context) const { return left_ + (std::log2(context) - low_) / (high_ - low_) * panel_width; }
  double y(double value) const { return panel_top + panel_height * (1 - value / ticks_.back()); }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  double left_;
  double low_ = 0;
  double high_ = 0;
  std::vector<double> ticks_;
};

std::string frame(const BenchReport& report, const Panel& panel, const Axes& axes) {
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
  for (const BenchRow& row : report.rows) {
    const double x = axes.x(row.context);
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"axis\"/>\n", x,
                       bottom, x, bottom + 4);
    if (x - last < 34) continue;  // the label would touch the one before
    last = x;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"tick\" text-anchor=\"middle\">{}</text>\n", x,
                       bottom + 20, context_label(row.context));
  }
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"label\" text-anchor=\"middle\">context, tokens</text>\n",
      panel.left + panel_width / 2, bottom + 42);
  return svg;
}

std::string draw(const BenchReport& report, const Curve& curve, const Axes& axes) {
  std::string points;
  for (std::size_t i = 0; i < report.rows.size(); ++i)
    points += fmt::format("{:.1f},{:.1f} ", axes.x(report.rows[i].context), axes.y(curve.values[i]));
  std::string svg = fmt::format("<polyline points=\"{}\" class=\"curve\" stroke=\"{}\"{}/>\n", points,
                                curve.color, curve.dashed ? " stroke-dasharray=\"7 5\"" : "");
  // A dashed line of one point would not be seen.
  if (curve.dashed && report.rows.size() > 1) return svg;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n",
                       axes.x(report.rows[i].context), axes.y(curve.values[i]), curve.color);
  }
  return svg;
}

/// Right of the title.
std::string legend(double left) {
  const double y = 48;
  return fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" class=\"curve\" stroke=\"{3}\"/>\n"
      "<text x=\"{4:.1f}\" y=\"{5:.1f}\" class=\"tick\">measured</text>\n"
      "<line x1=\"{6:.1f}\" y1=\"{1:.1f}\" x2=\"{7:.1f}\" y2=\"{1:.1f}\" class=\"curve\" stroke=\"{8}\" "
      "stroke-dasharray=\"7 5\"/>\n"
      "<text x=\"{9:.1f}\" y=\"{5:.1f}\" class=\"tick\">bound: memory reads</text>\n",
      left, y, left + 26, measured_color, left + 32, y + 4, left + 100, left + 126, bound_color, left + 132);
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

std::string bench_plot(const BenchReport& report) {
  Panel prefill{
      .left = 64, .title = "Prefill, tokens per second", .curves = {{.color = measured_color, .values = {}}}};
  Panel decode{
      .left = 548,
      .title = report.batch > 1 ? "Decode, tokens per second of all slots" : "Decode, tokens per second",
      .curves = {{.color = bound_color, .dashed = true, .values = {}},
                 {.color = measured_color, .values = {}}}};
  for (const BenchRow& row : report.rows) {
    prefill.curves[0].values.push_back(prefill_rate(report, row));
    decode.curves[0].values.push_back(decode_bound(report, row) * report.batch);
    decode.curves[1].values.push_back(decode_rate(report, row) * report.batch);
  }

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
  for (const Panel& panel : {prefill, decode}) {
    const Axes axes(report, panel);
    svg += frame(report, panel, axes);
    for (const Curve& curve : panel.curves) svg += draw(report, curve, axes);
  }
  svg += legend(decode.left + panel_width - 246);
  return svg + "</svg>\n";
}

}  // namespace calla::cli
