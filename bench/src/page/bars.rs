//! Bar charts of results on shaped links: for each arrangement of machines, the time of every contender beside the optimum.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::picture::{COLOURS, line, plain, word};

/// One arrangement and size: contenders and their times in milliseconds, from the median, the smallest and the largest sample.
struct Group {
    name: String,
    optimum: f64,
    bars: Vec<(String, [f64; 3])>,
}

/// Draws one file of results, and returns file name and SVG; `None` if no result has an optimum.
pub(super) fn draw(name: &str, results: &Value) -> Option<(String, String)> {
    let groups = groups(results);
    (!groups.is_empty()).then(|| (format!("{name}-optimum.svg"), picture(name, &groups)))
}

fn groups(results: &Value) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in results["rows"].as_array().into_iter().flatten() {
        let figures = &row["in_place"];
        let time = |of: &str| figures["time_us"][of].as_f64().map(|us| us / 1e3);
        let (Some(optimum), Some(median), Some(min), Some(max)) =
            (figures["optimum"]["time_us"].as_f64(), time("median"), time("min"), time("max"))
        else {
            continue;
        };
        let word = |name: &str| row[name].as_str().unwrap_or("").to_owned();
        let size = gradlane_core::config::units::print_bytes(row["size"].as_u64().unwrap_or(0));
        let name = format!("{}, {size}", word("variant"));
        let bar = (word("contender"), [median, min, max]);
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name, optimum: optimum / 1e3, bars: vec![bar] }),
        }
    }
    groups
}

const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Widths of a group and of a bar in it.
const GROUP: f64 = 110.0;
const BAR: f64 = 28.0;

fn picture(name: &str, groups: &[Group]) -> String {
    let width = LEFT + RIGHT + GROUP * groups.len() as f64;
    let highest = groups
        .iter()
        .flat_map(|group| group.bars.iter().map(|(_, [_, _, max])| *max).chain([group.optimum]))
        .fold(0.0, f64::max)
        .max(f64::MIN_POSITIVE);
    let y = |time: f64| TOP + (1.0 - time / highest) * (HEIGHT - TOP - BOTTOM);
    // The optimum has the first colour, the contenders have the next ones.
    let mut colours: BTreeMap<&str, &str> = BTreeMap::from([(OPTIMUM, COLOURS[5])]);
    for (contender, _) in groups.iter().flat_map(|group| &group.bars) {
        let next = COLOURS[(colours.len() - 1) % 5];
        colours.entry(contender).or_insert(next);
    }

    let mut text = String::new();
    writeln!(text, r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12">"#)
        .expect(STRING);
    writeln!(text, r#"<rect width="{width}" height="{HEIGHT}" fill="white"/>"#).expect(STRING);
    let title = format!("{}: workers+servers, ms of an exchange", plain(name));
    writeln!(text, r#"<text x="{LEFT}" y="22" font-size="15">{title}</text>"#).expect(STRING);
    let step = step(highest);
    for tick in (0..).map(|number| step * f64::from(number)).take_while(|tick| *tick <= highest) {
        line(&mut text, (LEFT, y(tick)), (width - RIGHT, y(tick)), "#dddddd");
        word(&mut text, (LEFT - 6.0, y(tick) + 4.0), "end", &format!("{tick}"));
    }
    for (number, group) in groups.iter().enumerate() {
        let middle = LEFT + GROUP * (number as f64 + 0.5);
        let optimum = (OPTIMUM, [group.optimum; 3]);
        let bars: Vec<(&str, [f64; 3])> =
            group.bars.iter().map(|(contender, times)| (contender.as_str(), *times)).chain([optimum]).collect();
        let first = middle - BAR * bars.len() as f64 / 2.0;
        for (place, (contender, [median, min, max])) in bars.into_iter().enumerate() {
            let (left, colour) = (first + BAR * place as f64, colours[contender]);
            let (top, tall) = (y(median), y(0.0) - y(median));
            let wide = BAR - 4.0;
            writeln!(text, r#"<rect x="{left:.1}" y="{top:.1}" width="{wide}" height="{tall:.1}" fill="{colour}"/>"#)
                .expect(STRING);
            let centre = left + wide / 2.0;
            if max > min {
                line(&mut text, (centre, y(min)), (centre, y(max)), "#000000");
            }
            word(&mut text, (centre, y(max) - 4.0), "middle", &format!("{median:.0}"));
        }
        word(&mut text, (middle, HEIGHT - BOTTOM + 18.0), "middle", &group.name);
    }
    for (number, (contender, colour)) in colours.iter().enumerate() {
        let (left, at) = (width - RIGHT + 10.0, TOP + 10.0 + 20.0 * number as f64);
        writeln!(text, r#"<rect x="{left}" y="{}" width="14" height="10" fill="{colour}"/>"#, at - 9.0).expect(STRING);
        word(&mut text, (left + 20.0, at), "start", contender);
    }
    text.push_str("</svg>\n");
    text
}

/// A round distance between grid lines, so that about five fit below `highest`.
fn step(highest: f64) -> f64 {
    let decade = 10_f64.powf((highest / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|times| times * decade)
        .into_iter()
        .find(|step| highest / step <= 6.0)
        .unwrap_or(decade * 10.0)
}

const OPTIMUM: &str = "optimum";
const STRING: &str = "writing to a string does not fail";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_arrangement_has_a_bar_for_each_contender_and_one_for_the_optimum() {
        let row = |contender: &str, variant: &str, ms: f64| {
            json!({
                "contender": contender, "variant": variant, "size": 1 << 20,
                "in_place": { "time_us": { "median": ms * 1e3, "min": ms * 9e2, "max": ms * 1.1e3 }, "optimum": { "time_us": 500e3 } },
            })
        };
        let rows = [row("quic", "2+1", 600.0), row("gloo", "2+1", 900.0), row("quic", "4+4", 550.0)];
        let (name, picture) = draw("net", &json!({ "rows": rows })).expect("there is an optimum");
        assert_eq!(name, "net-optimum.svg");
        // Background, two and three bars with those of the optimum, a square of the legend each.
        assert_eq!(picture.matches("<rect").count(), 1 + 3 + 2 + 3);
        assert!(picture.contains("4+4, 1 MiB"), "{picture}");
        assert!(draw("net", &json!({ "rows": [{ "contender": "quic", "in_place": {} }] })).is_none());
    }

    #[test]
    fn lines_are_a_round_distance_apart() {
        assert_eq!([0.9, 7.0, 537.0, 1000.0].map(step), [0.2, 2.0, 100.0, 200.0]);
    }
}
