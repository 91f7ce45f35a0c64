//! Line charts of results: bandwidth over size, both axes logarithmic, a line for each contender. Writes SVG directly, because a few lines
//! and labels need no library.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gradlane_core::config::units::print_bytes;
use serde_json::Value;

/// A contender's line: size and GB/s.
type Line = Vec<(f64, f64)>;
/// Names of bounds begin with this; their lines are dashed.
const BOUND: &str = "bound of ";

/// The pictures of one file of results, by file name: one for each element type and collective that was measured at several sizes. The name
/// leaves out all-reduce.
pub(super) fn draw(name: &str, results: &Value) -> Vec<(String, String)> {
    let mut lines: BTreeMap<String, BTreeMap<String, Line>> = BTreeMap::new();
    for row in results["rows"].as_array().into_iter().flatten() {
        let word = |name: &str| row[name].as_str().unwrap_or("").to_owned();
        // Prefers figures in place, because all contenders have them and Gloo has no others.
        let figures = if row["in_place"].is_null() { &row["out_of_place"] } else { &row["in_place"] };
        if let (Some(size), Some(speed)) = (row["size"].as_f64(), figures["algbw"]["median"].as_f64())
            && speed > 0.0
        {
            let contender = format!("{} {}", word("contender"), word("variant")).trim().to_owned();
            let what = match word("collective").as_str() {
                "" | "all-reduce" => word("type"),
                other => format!("{}-{other}", word("type")),
            };
            let lines = lines.entry(what).or_default();
            if let Some(reached) = figures["bound"]["reached"]["median"].as_f64() {
                lines.entry(format!("{BOUND}{contender}")).or_default().push((size, speed / reached));
            }
            lines.entry(contender).or_default().push((size, speed));
        }
    }
    lines.retain(|_, lines| lines.values().any(|line| line.len() > 1 && line.iter().any(|point| point.0 != line[0].0)));
    lines.into_iter().map(|(what, lines)| (format!("{name}-{what}.svg"), picture(name, &what, &lines))).collect()
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Distinct also for colour-blind readers (Okabe and Ito 2008).
pub(super) const COLOURS: [&str; 7] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];

fn picture(name: &str, what: &str, lines: &BTreeMap<String, Line>) -> String {
    let points = || lines.values().flatten();
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        points().map(of).fold((f64::INFINITY, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)))
    };
    let (sizes, speeds) = (bounds(|point| point.0), bounds(|point| point.1));
    let (low, high) = (speeds.0.log10().floor(), speeds.1.log10().ceil());
    let x = |size: f64| {
        let share = (size / sizes.0).log2() / (sizes.1 / sizes.0).log2().max(1.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let y = |speed: f64| TOP + (high - speed.log10()) / (high - low).max(1.0) * (HEIGHT - TOP - BOTTOM);

    let mut text = String::new();
    writeln!(text, r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">"#)
        .expect(STRING);
    writeln!(text, r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#).expect(STRING);
    writeln!(
        text,
        r#"<text x="{LEFT}" y="22" font-size="15">{}, {what}: size against algbw in GB/s</text>"#,
        plain(name)
    )
    .expect(STRING);
    for decade in low as i32..=high as i32 {
        let speed = 10_f64.powi(decade);
        line(&mut text, (LEFT, y(speed)), (WIDTH - RIGHT, y(speed)), "#dddddd");
        word(&mut text, (LEFT - 6.0, y(speed) + 4.0), "end", &format!("{speed}"));
    }
    let mut ticks: Vec<f64> = points().map(|point| point.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let every = ticks.len().div_ceil(8).max(1);
    for (number, size) in ticks.iter().enumerate() {
        line(&mut text, (x(*size), TOP), (x(*size), HEIGHT - BOTTOM), "#eeeeee");
        if number % every == 0 {
            word(&mut text, (x(*size), HEIGHT - BOTTOM + 18.0), "middle", &print_bytes(*size as u64));
        }
    }
    for (number, (contender, line)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let path: Vec<String> = line.iter().map(|(size, speed)| format!("{:.1},{:.1}", x(*size), y(*speed))).collect();
        let dashes = if contender.starts_with(BOUND) { r#" stroke-dasharray="6 4""# } else { "" };
        writeln!(
            text,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>"#,
            path.join(" ")
        )
        .expect(STRING);
        for (size, speed) in line {
            writeln!(text, r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"/>"#, x(*size), y(*speed))
                .expect(STRING);
        }
        let at = TOP + 10.0 + 20.0 * number as f64;
        let legend = WIDTH - RIGHT + 15.0;
        writeln!(text, r#"<rect x="{legend}" y="{}" width="14" height="4" fill="{colour}"/>"#, at - 6.0).expect(STRING);
        word(&mut text, (legend + 20.0, at), "start", contender);
    }
    text.push_str("</svg>\n");
    text
}

pub(super) fn line(text: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(text, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#).expect(STRING);
}

pub(super) fn word(text: &mut String, at: (f64, f64), anchor: &str, word: &str) {
    let (x, y) = at;
    writeln!(text, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, plain(word)).expect(STRING);
}

/// Escapes the special characters of XML.
pub(super) fn plain(word: &str) -> String {
    word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const STRING: &str = "writing to a string does not fail";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_collective_has_its_own_picture() {
        let row = |collective: &str, size: u64| json!({ "contender": "shm", "variant": collective, "collective": collective, "type": "float32", "size": size, "out_of_place": { "algbw": { "median": 1.0 } } });
        let rows: Vec<Value> =
            ["all-gather", "all-to-all"].iter().flat_map(|of| [row(of, 4096), row(of, 65536)]).collect();
        let names: Vec<String> = draw("c", &json!({ "rows": rows })).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["c-float32-all-gather.svg", "c-float32-all-to-all.svg"]);
    }

    #[test]
    fn a_picture_has_a_line_for_each_contender_and_none_is_drawn_of_a_single_size() {
        let row = |contender: &str, size: u64, algbw: f64| json!({ "contender": contender, "variant": "", "type": "float32", "size": size, "in_place": { "algbw": { "median": algbw } } });
        let all = json!({ "rows": [row("quic", 4096, 0.1), row("quic", 65536, 1.0), row("gloo", 4096, 0.2), row("gloo", 65536, 0.5)] });
        let pictures = draw("push-pull", &all);
        assert_eq!(pictures.len(), 1);
        assert_eq!(pictures[0].0, "push-pull-float32.svg");
        assert_eq!(pictures[0].1.matches("<polyline").count(), 2);
        assert_eq!(draw("push-pull", &json!({ "rows": [row("quic", 4096, 0.1)] })).len(), 0);
    }
}
