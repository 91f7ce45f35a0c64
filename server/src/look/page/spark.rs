//! Small drawings of the last minutes, as SVG within the page.

use std::fmt::Write;

use super::html::text;
use crate::look::history::{Point, SECONDS};

/// A drawing of one number of the points, from 0 to its highest value. `now` is the second at the right end. Where there are no points, or no
/// values, the line has a gap. `word` is how people read a value.
pub(super) fn spark(
    name: &str,
    points: &[Point],
    now: u64,
    value: impl Fn(&Point) -> Option<f32>,
    word: impl Fn(f64) -> String,
) -> String {
    let values: Vec<(u64, f32)> = points
        .iter()
        .filter_map(|point| Some((point.second, value(point).filter(|value| value.is_finite())?)))
        .collect();
    let highest = values.iter().fold(0.0_f32, |highest, (_, value)| highest.max(*value));
    let last = values.last().map_or_else(|| "-".to_owned(), |(_, value)| word(f64::from(*value)));
    let range = format!("the last 5 min, at most {}", word(f64::from(highest)));
    let mut html = format!("<figure><figcaption><b>{}</b> {}</figcaption>", text(name, 20), text(&last, 20));
    let _ = write!(
        html,
        "<svg viewBox=\"0 0 {SECONDS} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        text(&format!("{name}: {range}"), 80)
    );
    let mut before: Option<u64> = None;
    for (second, value) in values {
        let x = (SECONDS + second).saturating_sub(now + 1);
        let y = if highest > 0.0 { HEIGHT - 1.0 - value / highest * (HEIGHT - 2.0) } else { HEIGHT - 1.0 };
        match before {
            // The second in between may have been short of its point.
            Some(before) if second <= before + 2 => html.push(' '),
            Some(_) => html.push_str("\"/><polyline points=\""),
            None => html.push_str("<polyline points=\""),
        }
        let _ = write!(html, "{x},{y:.0}");
        before = Some(second);
    }
    if before.is_some() {
        html.push_str("\"/>");
    }
    let _ = writeln!(html, "</svg><small>{}</small></figure>", text(&range, 60));
    html
}

const HEIGHT: f32 = 40.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_goes_from_zero_to_the_highest_value_and_has_gaps() {
        let point = |second, step| Point { second, step, ..Point::default() };
        let points = [
            point(10, Some(1.0)),
            point(11, Some(2.0)),
            point(20, None),
            point(30, Some(0.0)),
            point(31, Some(f32::NAN)),
        ];
        let html = spark("step", &points, 31, |point| point.step, |value| format!("{value} s"));
        assert!(html.contains("<polyline points=\"278,20 279,1\"/><polyline points=\"298,39\"/></svg>"), "{html}");
        assert!(html.contains("<b>step</b> 0 s</figcaption>") && html.contains("at most 2 s</small>"), "{html}");
    }

    #[test]
    fn without_values_there_is_no_line() {
        let html = spark("step", &[], 31, |point| point.step, |value| value.to_string());
        assert!(html.contains("<b>step</b> -<") && !html.contains("polyline"), "{html}");
    }
}
