//! Plots as SVG, without a library: lines over two logarithmic axes.

use std::fmt::Write as _;

/// Size of a plot, and the margins within which its lines are, in pixels.
const SIZE: (f64, f64) = (880.0, 560.0);
const MARGIN: (f64, f64) = (70.0, 50.0);
const LEGEND: f64 = 180.0;

/// Colours that can be told apart, also without colour vision; they repeat with dashes.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b"];

/// A line of a plot: its name, and points with both coordinates above zero.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A logarithmic axis from one power of ten to another.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    /// Where the ends are, in pixels.
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).log10().floor();
        let high = values.fold(0.0, f64::max).log10().ceil();
        // Without points, or with all of them at one power of ten, there is one decade.
        let low = if low.is_finite() { low } else { 0.0 };
        Self { low, high: high.max(low + 1.0), from, to }
    }

    fn pixel(self, value: f64) -> f64 {
        let share = (value.log10() - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    fn decades(self) -> impl Iterator<Item = f64> {
        let mut exponent = self.low;
        std::iter::from_fn(move || {
            let present = exponent;
            exponent += 1.0;
            (present <= self.high).then(|| 10_f64.powf(present))
        })
    }
}

/// Draws lines with the names of both axes. A line whose name begins with `paper` is of dots.
pub(crate) fn draw(title: &str, (x_name, y_name): (&str, &str), lines: &[Line]) -> String {
    let (width, height) = SIZE;
    let points = lines.iter().flat_map(|line| &line.points);
    let x = Axis::over(points.clone().map(|point| point.0), MARGIN.0, width - LEGEND);
    let y = Axis::over(points.map(|point| point.1), height - MARGIN.1, MARGIN.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{x_name}</text>\n\
         <text x=\"16\" y=\"{1}\" transform=\"rotate(-90 16 {1})\">{y_name}</text>\n",
        MARGIN.0,
        f64::midpoint(x.from, x.to),
        height - 12.0,
    );
    // Writing to a string cannot fail.
    let mut put = |text: String| _ = svg.write_str(&text);
    for value in x.decades() {
        let at = x.pixel(value);
        put(grid((at, y.from), (at, y.to)));
        put(format!(
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>\n",
            y.from + 16.0
        ));
    }
    for value in y.decades() {
        let at = y.pixel(value);
        put(grid((x.from, at), (x.to, at)));
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>\n",
            x.from - 6.0,
            at + 4.0
        ));
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let dash = if index < COLOURS.len() { "none" } else { "6 4" };
        let style = format!(
            "fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\""
        );
        let points = line.points.iter().map(|point| (x.pixel(point.0), y.pixel(point.1)));
        if line.is_dots() {
            points.for_each(|point| put(dot(point, colour)));
        } else {
            let points: Vec<_> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            put(format!("<polyline {style} points=\"{}\"/>\n", points.join(" ")));
        }
        let (left, top) = (width - LEGEND + 12.0, MARGIN.1 + 18.0 * index as f64);
        if line.is_dots() {
            put(dot((left + 12.0, top), colour));
        } else {
            put(format!("<polyline {style} points=\"{left},{top} {},{top}\"/>\n", left + 24.0));
        }
        put(format!("<text x=\"{}\" y=\"{}\">{}</text>\n", left + 30.0, top + 4.0, line.name));
    }
    svg.push_str("</svg>\n");
    svg
}

fn grid(from: (f64, f64), to: (f64, f64)) -> String {
    format!(
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>\n",
        from.0, from.1, to.0, to.1
    )
}

fn dot(at: (f64, f64), colour: &str) -> String {
    format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\"/>\n", at.0, at.1)
}

impl Line {
    /// Single numbers of others, which no line connects.
    fn is_dots(&self) -> bool {
        self.name.starts_with("paper")
    }
}
