//! Colours, the way figures are written, and rows of names and figures.

use std::fmt::Write;
use std::time::Duration;

/// Puts colours on text, or leaves it as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(pub(crate) bool);

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        if self.0 && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(crate) fn magenta(self, text: &str) -> String {
        self.with("35", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }
}

/// Rows of a name, a figure and a remark, under titles.
pub(crate) struct Rows {
    text: String,
    paint: Paint,
}

impl Rows {
    pub(crate) fn new(paint: Paint) -> Self {
        Self { text: String::new(), paint }
    }

    /// Begins a section.
    pub(crate) fn title(&mut self, title: &str) {
        let _ = writeln!(self.text, "\n{}", self.paint.bold(title));
    }

    /// A name and free text.
    pub(crate) fn line(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.text, "{name:<11} {text}");
    }

    pub(crate) fn number(&mut self, name: &str, n: u64, remark: &str) {
        self.text(name, &thousands(n), remark);
    }

    pub(crate) fn text(&mut self, name: &str, figure: &str, remark: &str) {
        self.row(name, &format!("{figure:>9}"), remark);
    }

    /// A figure that should be 0: green if it is, red if not.
    pub(crate) fn fault(&mut self, name: &str, n: u64, remark: &str) {
        let figure = format!("{:>9}", thousands(n));
        let figure = if n > 0 { self.paint.red(&figure) } else { self.paint.green(&figure) };
        self.row(name, &figure, remark);
    }

    fn row(&mut self, name: &str, figure: &str, remark: &str) {
        let remark = self.paint.dim(remark);
        let _ = writeln!(self.text, "{}", format!("  {name:<18} {figure}  {remark}").trim_end());
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// A number with its thousands apart: `12,345`.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A span as people write it: `12 µs`, `3.4 ms`, `10 s`.
pub(crate) fn span(span: Duration) -> String {
    let tenths = |n: f64| (n * 10.0).round() / 10.0;
    match span.as_micros() {
        micros @ 0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", tenths(span.as_secs_f64() * 1e3)),
        _ => format!("{} s", tenths(span.as_secs_f64())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        let numbers = [0, 12, 123, 1234, 123_456, 1_234_567].map(thousands);
        assert_eq!(numbers, ["0", "12", "123", "1,234", "123,456", "1,234,567"]);
        let spans = [0, 999, 1500, 2_000_000].map(|n| span(Duration::from_micros(n)));
        assert_eq!(spans, ["0 µs", "999 µs", "1.5 ms", "2 s"]);
    }

    #[test]
    fn without_colours_text_stays_as_it_is() {
        assert_eq!(Paint(false).red("x"), "x");
        assert_eq!(Paint(true).red("x"), "\x1b[1;31mx\x1b[0m");
    }
}
