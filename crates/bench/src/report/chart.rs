//! Plots as SVG, without a library: lines over two axes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::error::BenchError;

/// Size of a plot, and the margins within which its lines are, in pixels.
const SIZE: (f64, f64) = (880.0, 560.0);
const MARGIN: (f64, f64) = (70.0, 50.0);
const LEGEND: f64 = 180.0;

/// Colours that can be told apart, also without colour vision; they repeat with dashes.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b"];

/// A line of a plot: its name, and its points; on a logarithmic axis their coordinates are above zero.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) style: Style,
}

impl Series {
    /// Returns the line with this name, which is made if it is not there.
    pub(crate) fn named<'a>(lines: &'a mut Vec<Self>, name: &str) -> &'a mut Self {
        let found = lines.iter().position(|line| line.name == name);
        let index = found.unwrap_or(lines.len());
        if found.is_none() {
            lines.push(Self { name: name.to_owned(), points: Vec::new(), style: Style::Solid });
        }
        &mut lines[index]
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// Whole, as long as there are colours.
    #[default]
    Solid,
    /// With dashes whatever its colour.
    Dashed,
    /// Only its points: single numbers of others, which no line connects.
    Dots,
}

/// How an axis maps values to pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero, with equal steps.
    Linear,
    /// From one power of ten to another.
    Logarithmic,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    scale: Scale,
    /// The ends: powers of ten on a logarithmic axis, values on a linear one.
    low: f64,
    high: f64,
    /// Between marks, in the units of the ends.
    step: f64,
    /// Where the ends are, in pixels.
    from: f64,
    to: f64,
}

impl Axis {
    fn over(scale: Scale, values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let largest = values.clone().fold(0.0, f64::max);
        match scale {
            Scale::Logarithmic => {
                let low = values.fold(f64::INFINITY, f64::min).log10().floor();
                // Without points, or with all of them at one power of ten, there is one decade.
                let low = if low.is_finite() { low } else { 0.0 };
                let high = largest.log10().ceil().max(low + 1.0);
                Self { scale, low, high, step: 1.0, from, to }
            }
            Scale::Linear => {
                let largest = if largest > 0.0 { largest } else { 1.0 };
                // About five marks, at round values.
                let power = 10_f64.powf((largest / 5.0).log10().floor());
                let factors = [1.0, 2.0, 5.0, 10.0];
                let enough = factors.into_iter().find(|f| f * power * 5.0 >= largest);
                let step = power * enough.unwrap_or(10.0);
                let high = (largest / step).ceil() * step;
                Self { scale, low: 0.0, high, step, from, to }
            }
        }
    }

    fn pixel(self, value: f64) -> f64 {
        let value = if self.scale == Scale::Linear { value } else { value.log10() };
        let share = (value - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    fn marks(self) -> impl Iterator<Item = f64> {
        let mut count = 0.0;
        std::iter::from_fn(move || {
            let at = self.low + count * self.step;
            count += 1.0;
            let value = if self.scale == Scale::Linear { at } else { 10_f64.powf(at) };
            (at <= self.high + self.step / 2.0).then_some(value)
        })
    }
}

/// Writes a plot, and says so.
pub(crate) fn write(path: &Path, svg: String) -> Result<(), BenchError> {
    let error = |source| BenchError::File { path: path.to_owned(), source };
    fs::write(path, svg).map_err(error)?;
    println!("written: {}", path.display());
    Ok(())
}

/// Draws lines over two axes, each with its name and scale.
pub(crate) fn draw(
    title: &str,
    (x_name, x_scale): (&str, Scale),
    (y_name, y_scale): (&str, Scale),
    lines: &[Series],
) -> String {
    let (width, height) = SIZE;
    let points = lines.iter().flat_map(|line| &line.points);
    let x = Axis::over(x_scale, points.clone().map(|point| point.0), MARGIN.0, width - LEGEND);
    let y = Axis::over(y_scale, points.map(|point| point.1), height - MARGIN.1, MARGIN.1);
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
    for value in x.marks() {
        let at = x.pixel(value);
        put(grid((at, y.from), (at, y.to)));
        put(format!(
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>\n",
            y.from + 16.0
        ));
    }
    for value in y.marks() {
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
        let is_dashed = line.style == Style::Dashed || index >= COLOURS.len();
        let dash = if is_dashed { "6 4" } else { "none" };
        let style = format!(
            "fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\""
        );
        let points = line.points.iter().map(|point| (x.pixel(point.0), y.pixel(point.1)));
        let (left, top) = (width - LEGEND + 12.0, MARGIN.1 + 18.0 * index as f64);
        if line.style == Style::Dots {
            points.for_each(|point| put(dot(point, colour)));
            put(dot((left + 12.0, top), colour));
        } else {
            let points: Vec<_> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            put(format!("<polyline {style} points=\"{}\"/>\n", points.join(" ")));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_begins_at_zero_and_ends_at_a_round_value() {
        // Goal: marks are round and hold all points. Method: ends by hand, and the pixels of both.
        for (largest, high, marks) in [(100.0, 100.0, 6), (137.0, 150.0, 4), (7.0, 8.0, 5)] {
            let axis = Axis::over(Scale::Linear, [3.0, largest].into_iter(), 0.0, 10.0);
            assert_eq!((axis.high, axis.marks().count()), (high, marks), "{largest}");
            assert_eq!((axis.pixel(0.0), axis.pixel(high)), (0.0, 10.0));
        }
        let empty = Axis::over(Scale::Linear, std::iter::empty(), 0.0, 10.0);
        assert_eq!(empty.high, 1.0);
    }
}
