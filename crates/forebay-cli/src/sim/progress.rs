//! A bar with simulated time on the standard error, if that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use forebay_sim::output::span;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of the bar; simulated time has no natural ones.
const STEPS: u64 = 10_000;
/// How often the real time beside the bar moves on.
const TICK: Duration = Duration::from_millis(250);

/// The bar of one run.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins one; it is not seen if the standard error is no terminal.
    pub(crate) fn begin(name: &str, hidden: bool) -> Self {
        if hidden || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{prefix} [{bar:30}] {msg} simulated in {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        // a name is no place for commands to the terminal
        bar.set_prefix(name.replace(char::is_control, "?"));
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Shows how far the simulated time has come.
    pub(crate) fn at(&self, now: f64, end: f64) {
        if self.0.is_hidden() {
            return;
        }
        let share = if end > 0.0 { (now / end).clamp(0.0, 1.0) } else { 1.0 };
        self.0.set_position((share * STEPS as f64) as u64);
        self.0.set_message(format!("{} of {}", span(now.floor()), span(end)));
    }

    /// Takes the bar away: the summary says the rest.
    pub(crate) fn end(self) {
        self.0.finish_and_clear();
    }
}
