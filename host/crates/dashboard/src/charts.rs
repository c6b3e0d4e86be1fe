//! Charts as SVG. Each has a summary in words, and its values are also in a table of the page.

use std::fmt::Write;

use maud::{Markup, html};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 180.0;
/// The space for the labels of the axes.
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 10.0;

/// One bar, of which a part can be bad.
pub(crate) struct Bar {
    /// The time at which the bar begins.
    pub(crate) label: String,
    pub(crate) total: f64,
    pub(crate) bad: f64,
}

/// The values of two lines at one time. `None` if there is no value.
pub(crate) struct LinePoint {
    pub(crate) label: String,
    pub(crate) first: Option<f64>,
    pub(crate) second: Option<f64>,
}

/// A chart of bars. `text` writes a value with its unit, and `summary` is the chart in words.
pub(crate) fn bars(summary: &str, bars: &[Bar], text: fn(f64) -> String) -> Markup {
    let top = round_up(bars.iter().map(|bar| bar.total).fold(0.0, f64::max));
    let step = step(bars.len());
    let labels: Vec<_> = bars.iter().map(|bar| bar.label.as_str()).collect();
    frame(
        summary,
        top,
        text,
        &labels,
        &html! {
            @for (index, bar) in bars.iter().enumerate() {
                @let x = LEFT + step * index as f64 + step * 0.1;
                g {
                    title { (bar.label) ": " (text(bar.total)) @if bar.bad > 0.0 { ", of which failed: " (text(bar.bad)) } }
                    (rectangle("bar", x, step * 0.8, height(bar.bad, top), height(bar.total, top)))
                    (rectangle("bar bad", x, step * 0.8, 0.0, height(bar.bad, top)))
                }
            }
        },
    )
}

/// A chart of two lines: the first solid, the second dashed.
pub(crate) fn lines(summary: &str, points: &[LinePoint], text: fn(f64) -> String) -> Markup {
    let values = points.iter().flat_map(|point| [point.first, point.second]).flatten();
    let top = round_up(values.fold(0.0, f64::max));
    let labels: Vec<_> = points.iter().map(|point| point.label.as_str()).collect();
    let path = |value: fn(&LinePoint) -> Option<f64>| path(points.iter().map(value), step(points.len()), top);
    frame(
        summary,
        top,
        text,
        &labels,
        &html! {
            path class="line" d=(path(|point| point.first)) {}
            path class="line second" d=(path(|point| point.second)) {}
        },
    )
}

/// The axes of a chart with their labels.
fn frame(summary: &str, top: f64, text: fn(f64) -> String, labels: &[&str], content: &Markup) -> Markup {
    let base = HEIGHT - BOTTOM;
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(summary) {
            line.axis x1=(LEFT) y1=(base) x2=(WIDTH) y2=(base) {}
            line.axis x1=(LEFT) y1=(TOP) x2=(WIDTH) y2=(TOP) {}
            text x=(LEFT - 6.0) y=(base) text-anchor="end" { (text(0.0)) }
            text x=(LEFT - 6.0) y=(TOP + 8.0) text-anchor="end" { (text(top)) }
            @if let (Some(first), Some(last)) = (labels.first(), labels.last()) {
                text x=(LEFT) y=(HEIGHT - 6.0) { (first) }
                text x=(WIDTH) y=(HEIGHT - 6.0) text-anchor="end" { (last) }
            }
            (content)
        }
    }
}

fn rectangle(class: &str, x: f64, width: f64, from: f64, to: f64) -> Markup {
    let base = HEIGHT - BOTTOM;
    html! {
        @if to > from {
            rect class=(class) x=(coordinate(x)) y=(coordinate(base - to)) width=(coordinate(width))
                height=(coordinate(to - from)) {}
        }
    }
}

/// A path through the values. It is interrupted where there is no value.
fn path(values: impl Iterator<Item = Option<f64>>, step: f64, top: f64) -> String {
    let mut path = String::new();
    let mut command = 'M';
    for (index, value) in values.enumerate() {
        let Some(value) = value else {
            command = 'M';
            continue;
        };
        let x = LEFT + step * (index as f64 + 0.5);
        let y = HEIGHT - BOTTOM - height(value, top);
        // A point between two gaps would be invisible, so every point begins with a short stroke.
        let _ = write!(path, "{command}{} {}h2", coordinate(x - 1.0), coordinate(y));
        command = 'L';
    }
    path
}

fn step(points: usize) -> f64 {
    (WIDTH - LEFT) / points.max(1) as f64
}

fn height(value: f64, top: f64) -> f64 {
    if top > 0.0 { value / top * (HEIGHT - BOTTOM - TOP) } else { 0.0 }
}

fn coordinate(value: f64) -> String {
    format!("{value:.1}")
}

/// The next round number: 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| power * factor >= value);
    power * factor.unwrap_or(10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number() {
        for (value, expected) in
            [(0.0, "1"), (1.0, "1"), (3.0, "5"), (51.0, "100"), (1_700.0, "2000"), (0.03, "0.05")]
        {
            assert_eq!(round_up(value).to_string(), expected, "{value}");
        }
    }

    #[test]
    fn a_line_is_interrupted_where_there_is_no_value() {
        let path = path([Some(1.0), Some(1.0), None, Some(1.0)].into_iter(), 10.0, 1.0);
        assert_eq!(path.matches('M').count(), 2);
        assert_eq!(path.matches('L').count(), 1);
    }

    #[test]
    fn summaries_and_labels_are_escaped() {
        let bar = Bar { label: "<script>".to_owned(), total: 1.0, bad: 0.0 };
        let chart = bars("<b>", &[bar], |value| value.to_string()).into_string();
        assert!(!chart.contains("<script>") && !chart.contains("<b>"), "{chart}");
    }
}
