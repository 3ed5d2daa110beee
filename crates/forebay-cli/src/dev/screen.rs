//! What the user sees: on a terminal one table that is redrawn in place, else
//! one line a second; and the summary. Everything is made as text first and
//! written at once, so a redraw does not flicker.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::net::SocketAddr;

use forebay::Drained;

use super::args::Plan;
use super::paint::{Paint, span, thousands};
use super::sample::Sample;

/// Columns of the bar.
const BAR: u32 = 50;
/// Lines between two headings of the plain output.
const HEADING_EVERY: u64 = 20;

/// Where the output goes, and how.
pub(crate) struct Screen {
    paint: Paint,
    redraws: bool,
    /// Lines of the table on the screen.
    drawn: usize,
    lines: u64,
}

impl Screen {
    /// The standard output: a table if it is a terminal, in colours unless
    /// somebody objects.
    pub(crate) fn stdout(no_color: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let redraws = io::stdout().is_terminal() && !dumb;
        let paint = Paint(redraws && !no_color && !set("NO_COLOR"));
        Self { paint, redraws, drawn: 0, lines: 0 }
    }

    /// Says what is going to be seen.
    pub(crate) fn begin(&self, plan: &Plan, address: SocketAddr) -> io::Result<()> {
        write(&introduction(plan, address, self.paint))
    }

    /// Shows one reading.
    pub(crate) fn show(&mut self, sample: &Sample, plan: &Plan) -> io::Result<()> {
        let mut text = String::new();
        if self.redraws {
            if self.drawn > 0 {
                let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
            }
            let table = table(sample, plan, self.paint);
            self.drawn = table.lines().count();
            text.push_str(&table);
        } else {
            if self.lines.is_multiple_of(HEADING_EVERY) {
                text.push_str(&heading());
            }
            self.lines += 1;
            text.push_str(&line(sample, plan));
        }
        write(&text)
    }

    /// Shows what it all came to.
    pub(crate) fn end(&self, sample: &Sample, plan: &Plan, drained: Drained) -> io::Result<()> {
        write(&summary(sample, plan, drained, self.paint))
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn introduction(plan: &Plan, address: SocketAddr, paint: Paint) -> String {
    let (limits, lives) = (&plan.limits, &plan.lives);
    let shortest = lives.base - lives.jitter / 2;
    let pace = match plan.pace {
        Some(pace) => format!("opens {}/s after {} at once", pace.per_second(), pace.burst()),
        None => "knows nothing of the rate".to_owned(),
    };
    let until = match plan.run_for {
        Some(time) => format!("ends after {time:?}"),
        None => "Ctrl-C drains and ends".to_owned(),
    };
    format!(
        "{title} a pool in front of a backend that rations connections; {until}\n\n\
         backend  {address}: {rate} opens/s after {burst} at once, {max_open} open, cut off at {cut:?}\n\
         pool     keeps {ready} ready, {pace}; lives of {shortest:?} to {longest:?}\n\
         work     {tasks} tasks, {service:?} a request, {pause:?} of rest; seed {seed}\n\n",
        title = paint.bold("forebay dev"),
        rate = limits.per_second,
        burst = limits.burst,
        max_open = limits.max_open,
        cut = limits.lifetime,
        ready = plan.target_ready,
        longest = limits.lifetime,
        tasks = plan.tasks,
        service = plan.service,
        pause = plan.pause,
        seed = plan.seed,
    )
}

/// The connections as one bar over the cap, each state with a sign of its own.
fn bar(sample: &Sample, max_open: u32, paint: Paint) -> String {
    let states = [
        ('=', sample.pool.ready()),
        ('#', sample.pool.in_use()),
        ('+', sample.opening()),
        ('-', sample.closing()),
    ];
    let mut bar = String::new();
    let (mut sum, mut drawn) = (0, 0);
    for (sign, count) in states {
        sum += count;
        let end = (u64::from(sum) * u64::from(BAR)).div_ceil(u64::from(max_open)) as u32;
        let part = String::from(sign).repeat(end.saturating_sub(drawn) as usize);
        drawn = drawn.max(end);
        bar.push_str(&state(sign, &part, paint));
    }
    bar + &paint.dim(&".".repeat(BAR.saturating_sub(drawn) as usize))
}

/// Text in the colour of a state.
fn state(sign: char, text: &str, paint: Paint) -> String {
    match sign {
        '=' => paint.green(text),
        '#' => paint.cyan(text),
        '+' => paint.yellow(text),
        _ => paint.magenta(text),
    }
}

fn table(sample: &Sample, plan: &Plan, paint: Paint) -> String {
    let (pool, backend, limits) = (&sample.pool, &sample.backend, &plan.limits);
    let mut text = String::new();
    let mut row = |name: &str, value: String, more: String| {
        let _ = writeln!(text, "  {name:<20} {value} {}", paint.dim(&more));
    };
    let number = |n: u64| format!("{:>9}", thousands(n));
    let fault = |n: u64| paint.fault(n > 0, &number(n));
    let title = format!("after {} s", sample.elapsed.as_secs_f64().round());
    let bar = bar(sample, limits.max_open, paint);
    row(&title, format!("[{bar}]"), String::new());
    let legend = [
        state('=', &format!("= ready {:<3}", pool.ready()), paint),
        state('#', &format!("# in use {:<3}", pool.in_use()), paint),
        state('+', &format!("+ opening {:<3}", sample.opening()), paint),
        state('-', &format!("- closing {:<3}", sample.closing()), paint),
    ];
    row("", format!(" {}", legend.join(" ")), String::new());
    row("", String::new(), String::new());
    row("checkouts/s", number(sample.checkouts_per_second.round() as u64), String::new());
    let waits = format!("p99 {}", span(sample.wait_p99));
    let waiting = format!("{waits}; {} waiting now", thousands(pool.waiting.into()));
    row("wait p50", format!("{:>9}", span(sample.wait_p50)), waiting);
    row("replaced", number(sample.replaced), "at the end of their lives, one by one".to_owned());
    row("given up midway", number(sample.given_up), "closed, not used again".to_owned());
    let why = match &sample.last_failure {
        Some(failure) => format!("the last one: {failure}"),
        None => String::new(),
    };
    row("failed opens", fault(sample.failed_opens), why);
    row("breaches", fault(sample.breaches), "promises that the pool broke".to_owned());
    row("", String::new(), "counted by the backend itself".to_owned());
    let rate = format!("limit {} after {} at once", limits.per_second, limits.burst);
    row("opens/s", number(backend.last_second.into()), rate);
    let worst = u64::from(limits.per_second) + u64::from(limits.burst);
    let worst = format!("limit {}", thousands(worst));
    row("most in one second", number(backend.most_in_a_second.into()), worst);
    let cap = format!("limit {}", thousands(limits.max_open.into()));
    row("most open", number(backend.most_open.into()), cap);
    let refused = format!("{} too fast, {} too many", backend.too_fast, backend.too_many);
    row("refused", fault(backend.refused()), refused);
    row("cut off", fault(backend.cut_off), format!("older than {:?}", limits.lifetime));
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn heading() -> String {
    format!(
        "{:>6} {:>5} {:>6} {:>7} {:>7} {:>7} {:>11} {:>8} {:>8} {:>7} {:>9} {:>8} {:>7} {:>8}\n",
        "time",
        "ready",
        "in-use",
        "opening",
        "closing",
        "waiting",
        "checkouts/s",
        "wait-p50",
        "wait-p99",
        "opens/s",
        "most-open",
        "replaced",
        "refused",
        "breaches"
    )
}

fn line(sample: &Sample, plan: &Plan) -> String {
    let (pool, backend) = (&sample.pool, &sample.backend);
    format!(
        "{:>6} {:>5} {:>6} {:>7} {:>7} {:>7} {:>11.0} {:>8} {:>8} {:>7} {:>9} {:>8} {:>7} {:>8}\n",
        format!("{} s", sample.elapsed.as_secs_f64().round()),
        pool.ready(),
        pool.in_use(),
        sample.opening(),
        sample.closing(),
        pool.waiting,
        sample.checkouts_per_second,
        span(sample.wait_p50),
        span(sample.wait_p99),
        format!("{}/{}", backend.last_second, plan.limits.per_second),
        format!("{}/{}", backend.most_open, plan.limits.max_open),
        sample.replaced,
        backend.refused(),
        sample.breaches
    )
}

fn summary(sample: &Sample, plan: &Plan, drained: Drained, paint: Paint) -> String {
    let (pool, backend, limits) = (&sample.pool, &sample.backend, &plan.limits);
    let mut text = String::new();
    let mut row = |name: &str, value: u64, more: String| {
        let _ = writeln!(text, "  {name:<20} {:>9}  {}", thousands(value), paint.dim(&more));
    };
    let waits = [pool.wait.quantile(0.5), pool.wait.quantile(0.99), pool.wait.max()].map(span);
    let [p50, p99, worst] = waits;
    row("checkouts", pool.checkouts, format!("wait p50 {p50}, p99 {p99}, worst {worst}"));
    let others = format!("{} given up midway, {} failed", sample.given_up, sample.failed);
    row("requests answered", sample.answered, others);
    let opened = format!("{} replaced at the end of their lives", thousands(sample.replaced));
    row("connections opened", pool.opened(), opened);
    row("breaches", sample.breaches, String::new());
    let mine = std::mem::take(&mut text);
    let mut row = |name: &str, value: u64, more: String| {
        let _ = writeln!(text, "  {name:<20} {:>9}  {}", thousands(value), paint.dim(&more));
    };
    let limit = u64::from(limits.per_second) + u64::from(limits.burst);
    row("connections opened", backend.opened, String::new());
    row("most in one second", backend.most_in_a_second.into(), format!("limit {limit}"));
    row("most open", backend.most_open.into(), format!("limit {}", limits.max_open));
    let refused = format!("{} too fast, {} too many", backend.too_fast, backend.too_many);
    row("refusals", backend.refused(), refused);
    row("cut off", backend.cut_off, format!("older than {:?}", limits.lifetime));
    row("still open", backend.open.into(), String::new());
    let left = match drained.left {
        0 => String::new(),
        left => format!("{left} connections were still in use at the end\n"),
    };
    let verdict = if sample.is_good() {
        paint.green("every limit was kept")
    } else {
        paint.red("limits were not kept")
    };
    format!(
        "\n{}\n{mine}\n{}\n{text}\n{left}{verdict}\n",
        paint.bold(&format!("the pool, after {:.1} s", sample.elapsed.as_secs_f64())),
        paint.bold("the backend's own count"),
    )
}
