//! Where the output goes: on a terminal one table that is redrawn in place, else
//! one line a second. Each output is made as text first and written at once, so
//! a redraw does not flicker.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;

use forebay::Drained;

use super::args::Plan;
use super::paint::Paint;
use super::sample::Sample;
use super::{summary, table};

/// Lines between two headings of the plain output.
const HEADING_EVERY: u64 = 20;

/// A terminal that is too narrow cuts lines off: wrapped, they could not be redrawn.
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

/// The standard output.
pub(crate) struct Screen {
    paint: Paint,
    redraws: bool,
    /// Lines of the table on the screen.
    drawn: usize,
    lines: u64,
}

impl Screen {
    /// A table if it is a terminal, in colours unless somebody objects.
    pub(crate) fn stdout(no_color: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let redraws = io::stdout().is_terminal() && !dumb;
        let paint = Paint(redraws && !no_color && !set("NO_COLOR"));
        Self { paint, redraws, drawn: 0, lines: 0 }
    }

    /// Says what is going to be seen.
    pub(crate) fn begin(&self, plan: &Plan, address: SocketAddr) -> io::Result<()> {
        write(&summary::introduction(plan, address, self.paint))
    }

    /// Shows one reading.
    pub(crate) fn show(&mut self, sample: &Sample, plan: &Plan) -> io::Result<()> {
        let mut text = String::new();
        if self.redraws {
            if self.drawn > 0 {
                text = format!("\x1b[{}A\x1b[J", self.drawn);
            }
            let table = table::table(sample, plan, self.paint);
            self.drawn = table.lines().count();
            text = format!("{text}{WRAP_OFF}{table}{WRAP_ON}");
        } else {
            if self.lines.is_multiple_of(HEADING_EVERY) {
                text = table::heading();
            }
            self.lines += 1;
            text.push_str(&table::line(sample, plan));
        }
        write(&text)
    }

    /// Shows what it all came to.
    pub(crate) fn end(&self, sample: &Sample, plan: &Plan, drained: Drained) -> io::Result<()> {
        write(&summary::summary(sample, plan, drained.left, self.paint))
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
