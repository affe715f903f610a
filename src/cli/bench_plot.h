// A benchmark as a picture.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "cli/bench_beside.h"
#include "cli/bench_report.h"

namespace calla::cli {

/// An SVG of two panels, prefill and decode, tokens per second against the context (logarithmic), with the
/// bound of decode as a dashed line, and a curve more for each of the others. It has a background of its own.
std::string bench_plot(const BenchReport& report, std::span<const OtherSpeeds> beside);

/// Round values from 0 to at least `largest`, four to seven of them: the marks of an axis.
std::vector<double> round_ticks(double largest);

}  // namespace calla::cli
