//! One plot as an HTML figure with an inline SVG.
//!
//! The curves stand in an inner SVG whose coordinates are the data themselves (time
//! to the right, the value upwards, hence negative), stretched to whatever width
//! there is; the text stands in the outer one, which is not scaled, and keeps its
//! size on a phone. The few lines of script on the page read the values back from
//! the curves.

use std::fmt::Write;

use super::scale::{self, Point};
use super::series;
use super::words::{axis, escaped, instant, plain, span};
use crate::record::Mark;

/// Points of a curve at most, by the width of its plot.
pub(crate) const POINTS_WIDE: usize = 600;
pub(crate) const POINTS_HALF: usize = 300;
pub(crate) const POINTS_SMALL: usize = 150;
/// Characters of times that stand side by side on a phone.
const CHARACTERS: usize = 30;
/// Badges closer than this share of the width become one.
const CLOSE: f64 = 0.065;
/// A limit higher than this many times the data is not drawn but told.
const FAR: f64 = 4.0;
/// Room above the curves for badges, and below for times.
const TOP: u32 = 30;
const BOTTOM: u32 = 28;

/// A curve of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Its class in the style sheet.
    pub(crate) class: &'static str,
    pub(crate) points: Vec<Point>,
    pub(crate) shape: Shape,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// From point to point.
    Line,
    /// From point to point, and filled below.
    Area,
    /// Each value until the next point, the last for a second, and filled below.
    Steps,
    /// Each value until the next point, the last for a second.
    Stairs,
}

impl Curve {
    pub(crate) fn new(
        name: impl Into<String>,
        class: &'static str,
        shape: Shape,
        points: Vec<Point>,
    ) -> Self {
        Self { name: name.into(), class, points, shape }
    }
}

/// A limit to be seen in a plot.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    pub(crate) at: f64,
    pub(crate) name: String,
}

/// A plot.
#[derive(Debug, Clone)]
pub(crate) struct Plot<'a> {
    pub(crate) title: String,
    /// What it shows, in a sentence.
    pub(crate) about: String,
    /// Of the values: `""`, `"/s"`, `" ms"`, `" %"`.
    pub(crate) unit: &'static str,
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) curves: Vec<Curve>,
    pub(crate) limit: Option<Limit>,
    pub(crate) marks: &'a [Mark],
    /// Of the curves' field, in pixels.
    pub(crate) height: u32,
    /// Where the values end, if the plot must be comparable with others.
    pub(crate) top: Option<f64>,
    /// About so many times at the axis.
    pub(crate) times: u32,
    /// Points of a curve at most.
    pub(crate) points: usize,
}

impl Plot<'_> {
    /// The figure.
    pub(crate) fn draw(&self) -> String {
        let shown: Vec<Curve> = self.curves.iter().map(|curve| self.shown(curve)).collect();
        let data = shown.iter().map(|curve| series::highest(&curve.points)).fold(0.0, f64::max);
        let near = self.limit.as_ref().filter(|limit| data > 0.0 && limit.at <= data * FAR);
        let highest = near.map_or(data, |limit| data.max(limit.at * 1.08));
        // a curve at the very edge is hard to see; a percentage ends where it ends
        let room = if self.counts() { 1.02 } else { 1.0 };
        let ticks = scale::ticks(self.top.unwrap_or(highest) * room, self.counts());
        let top = ticks.last().copied().unwrap_or(1.0);

        let mut html = String::new();
        let title = escaped(&self.title);
        let _ = write!(
            html,
            "<figure class=\"plot\" data-from=\"{}\" data-to=\"{}\" data-unit=\"{}\">\n\
             <figcaption><h3>{title}</h3><span class=\"at\"></span>{}</figcaption>\n",
            plain(self.from),
            plain(self.to),
            self.unit,
            self.legend(&shown, near.is_none()),
        );
        let (w, h) = (self.to - self.from, self.height);
        let _ = writeln!(
            html,
            "<div class=\"field\"><svg class=\"outer\" role=\"img\" width=\"100%\" \
             height=\"{}\"><title>{title}</title><desc>{}</desc>",
            TOP + h + BOTTOM,
            escaped(&self.description(&shown)),
        );
        self.axes(&mut html, &ticks);
        let _ = writeln!(
            html,
            "<svg class=\"inner\" y=\"{TOP}\" width=\"100%\" height=\"{h}\" \
             viewBox=\"{} {} {} {}\" preserveAspectRatio=\"none\">",
            plain(self.from),
            plain(-top),
            plain(w),
            plain(top),
        );
        self.bands(&mut html, top);
        for curve in &shown {
            let class = curve.class;
            let fill = matches!(curve.shape, Shape::Area | Shape::Steps);
            let fill = if fill { " fill" } else { "" };
            let _ =
                writeln!(html, "<path class=\"curve {class}{fill}\" d=\"{}\"/>", self.path(curve));
        }
        if let Some(limit) = near {
            let y = plain(-limit.at);
            let _ = writeln!(
                html,
                "<line class=\"limit\" x1=\"{}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>",
                plain(self.from),
                plain(self.to),
            );
        }
        let _ = writeln!(html, "<line class=\"cross\" y1=\"{}\" y2=\"0\"/></svg>", plain(-top));
        if let Some(limit) = near {
            let y = f64::from(TOP) + f64::from(h) * (1.0 - limit.at / top) - 6.0;
            let name = escaped(&limit.name);
            let _ = writeln!(
                html,
                "<text class=\"halo limit-name\" x=\"100%\" dx=\"-4\" y=\"{}\">{name}</text>",
                plain(y)
            );
        }
        self.badges(&mut html);
        html.push_str("</svg></div>\n</figure>\n");
        html
    }

    /// Whether the values are whole numbers.
    fn counts(&self) -> bool {
        matches!(self.unit, "" | "/s")
    }

    /// The curve within this plot's time, short enough.
    fn shown(&self, curve: &Curve) -> Curve {
        let points = series::between(&curve.points, self.from, self.to);
        let points = points.into_iter().filter(|point| point.1.is_finite()).collect::<Vec<_>>();
        let points = scale::without_repeats(&scale::thin(&points, self.points));
        Curve { points, ..curve.clone() }
    }

    fn legend(&self, shown: &[Curve], tell_limit: bool) -> String {
        let mut html = String::from("<ul class=\"legend\">");
        for curve in shown {
            let most = series::highest(&curve.points);
            let _ = write!(
                html,
                "<li><svg width=\"22\" height=\"10\" aria-hidden=\"true\"><line class=\"curve {}\" \
                 x1=\"0\" x2=\"22\" y1=\"5\" y2=\"5\"/></svg>{} <b>max {}{}</b></li>",
                curve.class,
                escaped(&curve.name),
                axis(rounded(most)),
                self.unit,
            );
        }
        if let Some(limit) = self.limit.as_ref().filter(|_| tell_limit) {
            let _ = write!(html, "<li class=\"far\">{}, far above</li>", escaped(&limit.name));
        }
        html.push_str("</ul>");
        html
    }

    fn description(&self, shown: &[Curve]) -> String {
        let mut text = self.about.clone();
        for curve in shown {
            let last = curve.points.last().map_or(0.0, |point| point.1);
            let most = axis(rounded(series::highest(&curve.points)));
            let unit = self.unit;
            let _ = write!(text, " {}: at most {most}{unit}, ", curve.name);
            let _ = write!(text, "at the end {}{unit}.", axis(rounded(last)));
        }
        if let Some(limit) = &self.limit {
            let _ = write!(text, " {}.", limit.name);
        }
        text
    }

    fn axes(&self, html: &mut String, ticks: &[f64]) {
        let top = ticks.last().copied().unwrap_or(1.0);
        for tick in ticks {
            let y = f64::from(TOP) + f64::from(self.height) * (1.0 - tick / top);
            let base = if *tick == 0.0 { " base" } else { "" };
            let _ = writeln!(
                html,
                "<line class=\"grid{base}\" x1=\"0\" x2=\"100%\" y1=\"{0}\" y2=\"{0}\"/>\
                 <text class=\"y\" x=\"-8\" y=\"{1}\">{2}</text>",
                plain(y),
                plain(y + 5.0),
                axis(*tick)
            );
        }
        let below = TOP + self.height;
        let times = scale::time_ticks(self.from, self.to, self.times);
        let crowded = times.iter().map(|(_, label)| label.len() + 2).sum::<usize>() > CHARACTERS;
        for (index, (at, label)) in times.iter().enumerate() {
            let x = 100.0 * self.share(*at);
            let place = if x < 3.0 {
                "first"
            } else if x > 94.0 {
                "last"
            } else {
                "mid"
            };
            let odd = if crowded && index % 2 == 1 { " odd" } else { "" };
            let _ = writeln!(
                html,
                "<svg x=\"{}%\" y=\"{below}\" class=\"tick\"><line y2=\"5\"/>\
                 <text class=\"x {place}{odd}\" y=\"21\">{label}</text></svg>",
                plain(x)
            );
        }
    }

    /// How far to the right, from 0 to 1.
    fn share(&self, at: f64) -> f64 {
        (at - self.from) / (self.to - self.from)
    }

    /// The marks that lie in this plot's time, with their numbers.
    fn marks(&self) -> impl Iterator<Item = (usize, &Mark)> {
        let within = |mark: &Mark| mark.at <= self.to && mark.until >= self.from;
        self.marks.iter().enumerate().filter(move |(_, mark)| within(mark))
    }

    /// Events as shaded bands, and the time to recover as a lighter one.
    fn bands(&self, html: &mut String, top: f64) {
        for (_, mark) in self.marks() {
            let title = escaped(&told(mark));
            let mut band = |class: &str, from: f64, to: f64| {
                let (x, w, h) = (plain(from), plain(to - from), plain(top));
                let _ = writeln!(
                    html,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"-{h}\" width=\"{w}\" height=\"{h}\">\
                     <title>{title}</title></rect>"
                );
            };
            if let Some(recovered) = mark.recovered_at.filter(|at| *at > mark.until) {
                band("healing", mark.until, recovered);
            }
            if mark.until > mark.at {
                band("event", mark.at, mark.until);
            }
            // however short it is, its beginning is seen
            let _ = writeln!(
                html,
                "<line class=\"moment\" x1=\"{0}\" x2=\"{0}\" y1=\"-{1}\" y2=\"0\">\
                 <title>{title}</title></line>",
                plain(mark.at),
                plain(top)
            );
        }
    }

    /// Numbers above the events, and a sign where all was well again.
    fn badges(&self, html: &mut String) {
        let mut groups: Vec<(usize, usize, f64)> = Vec::new();
        for (index, mark) in self.marks() {
            let x = self.share(mark.at).clamp(0.0, 1.0);
            match groups.last_mut() {
                Some((_, last, at)) if x - *at < CLOSE => *last = index,
                _ => groups.push((index, index, x)),
            }
            if let Some(recovered) = mark.recovered_at.filter(|at| *at <= self.to) {
                let x = plain(100.0 * self.share(recovered));
                let _ = writeln!(
                    html,
                    "<svg class=\"well\" x=\"{x}%\" y=\"{TOP}\"><path d=\"M-5 0 0 -5 5 0 0 5z\"/></svg>"
                );
            }
        }
        for (first, last, x) in groups {
            let label = match last - first {
                0 => format!("{}", first + 1),
                1 => format!("{}, {}", first + 1, last + 1),
                _ => format!("{}–{}", first + 1, last + 1),
            };
            let wide = 12 + 8 * label.chars().count();
            let _ = writeln!(
                html,
                "<svg class=\"badge\" x=\"{}%\" y=\"12\"><rect x=\"-{}\" y=\"-10\" width=\"{wide}\" \
                 height=\"20\" rx=\"10\"/><text y=\"5\">{label}</text></svg>",
                plain(100.0 * x),
                plain(wide as f64 / 2.0),
            );
        }
    }

    /// The curve's path: pairs of time and negative value, and nothing else.
    fn path(&self, curve: &Curve) -> String {
        let mut d = String::from("M");
        let mut put = |at: f64, value: f64| {
            if d.len() > 1 {
                d.push(' ');
            }
            let _ = write!(d, "{} {}", plain(at), plain(-value));
        };
        let (Some(first), Some(last)) = (curve.points.first(), curve.points.last()) else {
            return "M0 0".to_owned();
        };
        let fill = matches!(curve.shape, Shape::Area | Shape::Steps);
        let steps = matches!(curve.shape, Shape::Steps | Shape::Stairs);
        let end = if steps { last.0 + 1.0 } else { last.0 };
        // The sides of a filled curve stand outside of what is seen, unless it is shorter.
        let outside = (self.to - self.from) / 50.0;
        let left = if first.0 > self.from { first.0 } else { first.0 - outside };
        let right = if end < self.to { end } else { end + outside };
        if fill {
            put(left, 0.0);
            put(left, first.1);
        }
        let mut before = None;
        for (at, value) in &curve.points {
            if let Some(before) = before.filter(|_| steps) {
                put(*at, before);
            }
            put(*at, *value);
            before = Some(*value);
        }
        if steps {
            put(end, last.1);
        }
        if fill {
            put(right, last.1);
            put(right, 0.0);
        }
        d
    }
}

/// A value short enough for a legend.
fn rounded(value: f64) -> f64 {
    if value >= 100.0 { value.round() } else { (value * 100.0).round() / 100.0 }
}

/// A mark in a sentence.
pub(crate) fn told(mark: &Mark) -> String {
    let mut text = format!("{} at {}", mark.what, instant(mark.at));
    if mark.until > mark.at {
        let _ = write!(text, ", over after {}", span(mark.until - mark.at));
    }
    match mark.recovered_at {
        Some(at) if at > mark.until => {
            let _ = write!(text, ", recovered {} later", span(at - mark.until));
        }
        Some(_) => text.push_str(", recovered at once"),
        None => text.push_str(", not recovered"),
    }
    text
}
