//! Colours and the way figures are written.

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

    /// Green for what should be 0 and is, red if it is not.
    pub(crate) fn fault(self, is_fault: bool, text: &str) -> String {
        if is_fault { self.red(text) } else { self.green(text) }
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

/// A span as people write it: `12 µs`, `3.4 ms`, `1.2 s`.
pub(crate) fn span(span: Duration) -> String {
    let micros = span.as_micros();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{:.1} ms", span.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", span.as_secs_f64()),
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
        assert_eq!(spans, ["0 µs", "999 µs", "1.5 ms", "2.0 s"]);
    }

    #[test]
    fn without_colours_text_stays_as_it_is() {
        assert_eq!(Paint(false).red("x"), "x");
        assert_eq!(Paint(true).red("x"), "\x1b[1;31mx\x1b[0m");
    }
}
