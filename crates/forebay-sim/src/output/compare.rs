//! Two runs side by side: typically one scenario with two settings.

use std::fmt::Write;

use serde::Serialize;

use super::figures::{Better, Figure, Unit, figures};
use super::json;
use super::page::page;
use super::plot::{Curve, Limit, POINTS_HALF, POINTS_WIDE, Plot, Shape};
use super::report::{end, open_limit, rate_limit};
use super::scale::Point;
use super::sections::{breakable, conclusion, outcome, setting, sign, upper};
use super::series::{by_second, highest, sum};
use super::summary::{NAMES, Style, pad, pad_left, width};
use super::words::escaped;
use crate::record::{Recording, Verdict};

/// Two runs, and what differs.
#[derive(Debug, Clone)]
pub struct Comparison<'a> {
    a: &'a Recording,
    b: &'a Recording,
    rows: Vec<Row>,
}

/// Puts two runs side by side; differences are those of `b` against `a`.
pub fn compare<'a>(a: &'a Recording, b: &'a Recording) -> Comparison<'a> {
    let (left, right) = (figures(a), figures(b));
    let find = |all: &[Figure], key: &str| all.iter().find(|one| one.key == key).cloned();
    let mut rows: Vec<Row> =
        left.iter().map(|one| Row { a: Some(one.clone()), b: find(&right, one.key) }).collect();
    let only_b = right.iter().filter(|one| find(&left, one.key).is_none());
    rows.extend(only_b.map(|one| Row { a: None, b: Some(one.clone()) }));
    Comparison { a, b, rows }
}

/// A figure of both runs.
#[derive(Debug, Clone)]
struct Row {
    a: Option<Figure>,
    b: Option<Figure>,
}

impl Row {
    /// The one that is there.
    fn either(&self) -> Option<&Figure> {
        self.a.as_ref().or(self.b.as_ref())
    }

    fn name(&self) -> &'static str {
        self.either().map_or("", |one| one.name)
    }

    fn values(&self) -> (Option<f64>, Option<f64>) {
        let value = |one: &Option<Figure>| one.as_ref().and_then(|one| one.value);
        (value(&self.a), value(&self.b))
    }

    fn texts(&self) -> [String; 2] {
        [&self.a, &self.b].map(|one| one.as_ref().map_or_else(String::new, Figure::text))
    }

    fn difference(&self) -> Option<f64> {
        let (a, b) = self.values();
        Some(b? - a?)
    }

    /// The difference as text: `+1.2 s (+40 %)`.
    fn told(&self) -> String {
        let unit = self.either().map_or(Unit::Count, |one| one.unit);
        let (Some(difference), (Some(a), _)) = (self.difference(), self.values()) else {
            return String::new();
        };
        let size = unit.text(difference.abs());
        if difference == 0.0 || size == unit.text(0.0) {
            return "same".to_owned();
        }
        let sign = if difference < 0.0 { "−" } else { "+" };
        if unit == Unit::Share || a <= 0.0 {
            return format!("{sign}{size}");
        }
        let share = 100.0 * difference.abs() / a;
        match share {
            share if share < 0.5 => format!("{sign}{size}"),
            share if share < 1000.0 => format!("{sign}{size} ({sign}{share:.0} %)"),
            _ => format!("{sign}{size} (×{:.0})", share / 100.0 + 1.0),
        }
    }

    /// Whether the second run is better, if that can be said.
    fn is_better(&self) -> Option<bool> {
        let better = self.either()?.better;
        let less = match self.values() {
            (Some(a), Some(b)) if a != b => b < a,
            // no value: never converged, never recovered
            (Some(_), None) if self.b.is_some() => false,
            (None, Some(_)) if self.a.is_some() => true,
            _ => return None,
        };
        match better {
            Better::Less => Some(less),
            Better::More => Some(!less),
            Better::Neither => None,
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    a: Side<'a>,
    b: Side<'a>,
    figures: Vec<Entry>,
}

#[derive(Serialize)]
struct Side<'a> {
    scenario: &'a str,
    seed: u64,
    as_expected: bool,
    verdicts: &'a [Verdict],
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    unit: &'static str,
    a: Option<f64>,
    b: Option<f64>,
    difference: Option<f64>,
    better: Option<&'static str>,
}

impl<'a> Comparison<'a> {
    /// Whether both runs came out as expected.
    pub fn as_expected(&self) -> bool {
        self.a.as_expected() && self.b.as_expected()
    }

    /// What the runs are called; alike names are told apart.
    fn names(&self) -> [String; 2] {
        [("A", self.a), ("B", self.b)].map(|(letter, one)| format!("{letter} · {}", one.scenario))
    }

    /// Every assertion that either run has, with how it came out.
    fn verdicts(&self) -> Vec<(&str, [Option<&Verdict>; 2])> {
        let mut names: Vec<&str> = Vec::new();
        for verdict in self.a.verdicts.iter().chain(&self.b.verdicts) {
            if !names.contains(&verdict.name.as_str()) {
                names.push(&verdict.name);
            }
        }
        let find = |run: &'_ Recording, name: &str| {
            run.verdicts.iter().position(|verdict| verdict.name == name)
        };
        let of = |name: &str| {
            [
                find(self.a, name).map(|index| &self.a.verdicts[index]),
                find(self.b, name).map(|index| &self.b.verdicts[index]),
            ]
        };
        names.into_iter().map(|name| (name, of(name))).collect()
    }

    /// As a table for a terminal.
    pub fn text(&self, style: Style) -> String {
        let names = self.names();
        let mut table: Vec<([String; 3], Option<bool>)> = Vec::new();
        for row in &self.rows {
            let [a, b] = row.texts();
            table.push(([a, b, row.told()], row.is_better()));
        }
        let heads = [names[0].as_str(), names[1].as_str(), "B against A"];
        let wide = |column: usize| {
            let cells = table.iter().map(|(cells, _)| width(&cells[column])).max().unwrap_or(0);
            cells.max(width(heads[column]))
        };
        let wide = [wide(0), wide(1), wide(2)];
        let mut text = String::new();
        for (letter, run) in [("A", self.a), ("B", self.b)] {
            let _ =
                writeln!(text, "{letter}  {}  {}", style.bold(&run.scenario), setting(run, " · "));
        }
        let _ = writeln!(
            text,
            "\n{}",
            style.dim(&format!(
                "{}  {}  {}  {}",
                pad("", NAMES),
                pad_left(heads[0], wide[0]),
                pad_left(heads[1], wide[1]),
                pad_left(heads[2], wide[2])
            ))
        );
        for (row, ([a, b, told], better)) in self.rows.iter().zip(&table) {
            let told = pad_left(told, wide[2]);
            let told = match better {
                Some(true) => style.green(&told),
                Some(false) => style.red(&told),
                None => told,
            };
            let (a, b) = (pad_left(a, wide[0]), pad_left(b, wide[1]));
            let _ = writeln!(text, "{}  {a}  {b}  {told}", pad(row.name(), NAMES));
        }
        let verdicts = self.verdicts();
        if !verdicts.is_empty() {
            let wide = verdicts.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
            let cell = |verdict: &Option<&Verdict>| match verdict {
                Some(verdict) => format!("{} {}", style.sign(outcome(verdict).0), verdict.seen),
                None => "not asked".to_owned(),
            };
            let _ = writeln!(text, "\n{}", style.bold("assertions"));
            for (name, both) in verdicts {
                let _ = writeln!(text, "  {}  A {}", pad(name, wide), cell(&both[0]));
                let _ = writeln!(text, "  {}  B {}", pad("", wide), cell(&both[1]));
            }
        }
        let _ = writeln!(text, "\nA: {}\nB: {}", conclusion(self.a), conclusion(self.b));
        style.safe(&text)
    }

    /// As JSON.
    pub fn json(&self) -> String {
        let side = |run: &'a Recording| {
            let Recording { scenario, seed, verdicts, .. } = run;
            Side { scenario, seed: *seed, as_expected: run.as_expected(), verdicts }
        };
        let figures = self.rows.iter().filter_map(|row| {
            let one = row.either()?;
            let (a, b) = row.values();
            let unit = match one.unit {
                Unit::Count => "count",
                Unit::Seconds => "seconds",
                Unit::Share => "share",
            };
            let better = row.is_better().map(|b| if b { "b" } else { "a" });
            Some(Entry { name: one.key, unit, a, b, difference: row.difference(), better })
        });
        json::pretty(&Document { a: side(self.a), b: side(self.b), figures: figures.collect() })
    }

    /// As a section of a page: the figures with their differences, the assertions,
    /// and the curves laid over each other.
    pub fn section(&self) -> String {
        let mut html = String::new();
        self.plots(&mut html);
        self.figures(&mut html);
        self.assertions(&mut html);
        html
    }

    /// As a page of its own.
    pub fn report(&self) -> String {
        let mut body = String::from("<header>\n<p class=\"brand\">forebay sim --compare</p>\n");
        let [a, b] = [self.a, self.b].map(|run| escaped(&run.scenario));
        let _ = writeln!(body, "<h1>{a} <span class=\"soft\">and</span> {b}</h1>");
        for (letter, class, run) in [("A", "a", self.a), ("B", "b", self.b)] {
            let good = run.as_expected();
            let _ = writeln!(
                body,
                "<p class=\"run soft\"><svg width=\"22\" height=\"10\" aria-hidden=\"true\"><line \
                 class=\"curve {class}\" x1=\"0\" x2=\"22\" y1=\"5\" y2=\"5\"/></svg> <b>{letter} · {}</b> \
                 <span class=\"{}\">{} {}</span><br/>{}</p>",
                escaped(&run.scenario),
                if good { "good" } else { "bad" },
                sign(good),
                escaped(&conclusion(run)),
                escaped(&setting(run, " · ")),
            );
        }
        body.push_str("</header>\n");
        body.push_str(&self.section());
        page(&format!("{} and {} · forebay sim", self.a.scenario, self.b.scenario), &body)
    }

    fn figures(&self, html: &mut String) {
        html.push_str(
            "<h2>Figures</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>Whole run</th><th>A</th>\
             <th>B</th><th>B against A</th></tr></thead>\n<tbody>\n",
        );
        for row in &self.rows {
            let [a, b] = row.texts();
            let class = match row.is_better() {
                Some(true) => " good",
                Some(false) => " bad",
                None => "",
            };
            let _ = writeln!(
                html,
                "<tr><th scope=\"row\">{}</th><td>{a}</td><td>{b}</td><td class=\"diff{class}\">{}</td></tr>",
                upper(row.name()),
                // the percentage stays with its number
                row.told().replace(" %", "\u{a0}%"),
            );
        }
        html.push_str("</tbody></table></div>\n");
    }

    fn assertions(&self, html: &mut String) {
        let verdicts = self.verdicts();
        if verdicts.is_empty() {
            return;
        }
        html.push_str(
            "<h2>Assertions</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>Assertion</th>\
             <th class=\"left\">A</th><th class=\"left\">B</th></tr></thead>\n<tbody>\n",
        );
        for (name, both) in verdicts {
            let _ = write!(html, "<tr><th scope=\"row\"><code>{}</code></th>", breakable(name));
            for verdict in both {
                let Some(verdict) = verdict else {
                    html.push_str("<td class=\"text soft\">not asked</td>");
                    continue;
                };
                let (good, word) = outcome(verdict);
                let class = if good { "good" } else { "bad" };
                let _ = write!(
                    html,
                    "<td class=\"text\"><span class=\"{class}\" role=\"img\" aria-label=\"{word}\">{}\
                     </span> {} <span class=\"soft\">({})</span></td>",
                    sign(good),
                    escaped(&verdict.seen),
                    escaped(&verdict.asked),
                );
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
    }

    /// The curves of both, laid over each other.
    fn plots(&self, html: &mut String) {
        let [a, b] = self.names();
        let to = end(self.a).max(end(self.b));
        let plot = |title: &str,
                    unit,
                    shape,
                    limit: Option<Limit>,
                    of: &dyn Fn(&Recording) -> Vec<Point>| {
            Plot {
                title: title.to_owned(),
                about: format!("{title} of both runs."),
                unit,
                from: 0.0,
                to,
                curves: vec![
                    Curve::new(&a, "a", shape, of(self.a)),
                    Curve::new(&b, "b", shape, of(self.b)),
                ],
                limit,
                marks: if self.a.events == self.b.events { &self.a.events } else { &[] },
                height: 150,
                top: None,
                times: 5,
                points: POINTS_HALF,
            }
        };
        let both =
            |a: Option<Limit>, b: Option<Limit>| a.filter(|a| b.is_some_and(|b| b.at == a.at));
        html.push_str("<h2>The whole run</h2>\n<div class=\"wide\">\n");
        let usable = |run: &Recording| sum(run, |one| f64::from(one.ready) + f64::from(one.in_use));
        let ready = plot("Ready or in use", "", Shape::Line, None, &usable);
        html.push_str(&Plot { height: 220, times: 8, points: POINTS_WIDE, ..ready }.draw());
        html.push_str("</div>\n<div class=\"grid\">\n");
        let connects = |run: &Recording| by_second(run, |second| second.connects);
        let limit = both(rate_limit(self.a), rate_limit(self.b));
        html.push_str(&plot("Opens per second", "/s", Shape::Stairs, limit, &connects).draw());
        let open = |run: &Recording| by_second(run, |second| second.most_open);
        let limit = both(open_limit(self.a), open_limit(self.b));
        html.push_str(&plot("Open connections", "", Shape::Line, limit, &open).draw());
        if self.a.totals.requests + self.b.totals.requests > 0 {
            let longest = |run: &Recording| sum(run, |one| one.longest_wait * 1e3);
            let most = highest(&longest(self.a)).max(highest(&longest(self.b)));
            let seconds = |run: &Recording| sum(run, |one| one.longest_wait);
            let wait = if most < 2000.0 {
                plot("Longest wait", " ms", Shape::Line, None, &longest)
            } else {
                plot("Longest wait", " s", Shape::Line, None, &seconds)
            };
            html.push_str(&wait.draw());
            let waiting = |run: &Recording| sum(run, |one| one.waiting.into());
            if highest(&waiting(self.a)) + highest(&waiting(self.b)) > 0.0 {
                html.push_str(&plot("Requests waiting", "", Shape::Line, None, &waiting).draw());
            }
        }
        html.push_str("</div>\n");
    }
}
