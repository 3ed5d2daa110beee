//! The first and the last words: what is going to be seen, and what it came to.

use std::net::SocketAddr;
use std::time::Duration;

use super::args::Plan;
use super::paint::{Paint, Rows, span, thousands};
use super::sample::Sample;

/// What is going to be seen.
pub(crate) fn introduction(plan: &Plan, address: SocketAddr, paint: Paint) -> String {
    let (limits, lives) = (&plan.limits, &plan.lives);
    let pace = match plan.pace {
        Some(pace) => format!("opens {}/s and {} at once", pace.per_second(), pace.burst()),
        None => "opens as fast as it can".to_owned(),
    };
    let end = match plan.run_for {
        Some(time) => format!("Ends after {}.", span(time)),
        None => "Ctrl-C ends it.".to_owned(),
    };
    let title = paint.bold("forebay dev");
    let mut rows = Rows::new(paint);
    rows.line(
        "backend",
        &format!(
            "{address}; allows {} opens/s and {} at once, {} open, {} to live",
            limits.per_second,
            limits.burst,
            limits.max_open,
            span(limits.lifetime)
        ),
    );
    rows.line(
        "pool",
        &format!(
            "keeps {} ready, {pace}; lives {} to {}",
            plan.target_ready,
            span(lives.base - lives.jitter / 2),
            span(lives.base + lives.jitter / 2)
        ),
    );
    rows.line(
        "work",
        &format!(
            "{} tasks; a request takes {}, a rest {} on average; seed {}",
            plan.tasks,
            span(plan.service),
            span(plan.pause),
            plan.seed
        ),
    );
    format!(
        "{title}: a pool in front of a backend that rations connections. {end}\n{}\n",
        rows.finish()
    )
}

/// From here on a stall may explain a limit that was missed: it is longer than
/// a permit of the rate is good for.
const STALL_WORTH_TELLING: Duration = forebay::PERMIT_GOOD_FOR;

/// What it came to; `left` connections were still held at the end.
pub(crate) fn summary(sample: &Sample, plan: &Plan, left: u32, paint: Paint) -> String {
    let (pool, backend, limits) = (&sample.pool, &sample.backend, &plan.limits);
    let mut rows = Rows::new(paint);
    rows.title(&format!("the pool, after {}", span(sample.elapsed)));
    let [p50, p99, worst] =
        [pool.wait.quantile(0.5), pool.wait.quantile(0.99), pool.wait.max()].map(span);
    rows.number("checkouts", pool.checkouts, &format!("wait p50 {p50}, p99 {p99}, worst {worst}"));
    let others = format!(
        "{} given up midway, {} failed, {} mixed up",
        sample.given_up, sample.failed, sample.mixed_up
    );
    rows.number("requests answered", sample.answered, &others);
    let replaced = format!("{} replaced before their time was over", thousands(sample.replaced));
    rows.number("connections opened", pool.opened(), &replaced);
    if sample.failed_opens > 0 {
        let last = sample.last_failure.as_deref().unwrap_or_default();
        rows.fault("failed opens", sample.failed_opens, last);
    }
    rows.fault("breaches", sample.breaches, "promises that the pool broke");

    rows.title("what the backend counted");
    rows.number("connections opened", backend.opened, "");
    let worst = u64::from(limits.per_second) + u64::from(limits.burst);
    let worst = format!("limit {} (rate and burst)", thousands(worst));
    rows.number("most in one second", backend.most_in_a_second.into(), &worst);
    rows.number("most open", backend.most_open.into(), &format!("limit {}", limits.max_open));
    let refused = format!("{} too fast, {} too many", backend.too_fast, backend.too_many);
    rows.fault("refusals", backend.refused(), &refused);
    rows.fault("cut off", backend.cut_off, &format!("older than {}", span(limits.lifetime)));
    rows.number("still open", backend.open.into(), "");
    let stall = if sample.stall > STALL_WORTH_TELLING {
        format!("this process once stood still for {}\n", span(sample.stall))
    } else {
        String::new()
    };
    let left = match left {
        0 => String::new(),
        left => format!("{left} connections were still in use when the time to drain was over\n"),
    };
    format!("{}\n{left}{stall}{}\n", rows.finish(), verdict(sample, paint))
}

fn verdict(sample: &Sample, paint: Paint) -> String {
    if sample.is_good() {
        return paint.green("every limit was kept");
    }
    let faults = [
        (sample.backend.refused(), "refused"),
        (sample.backend.cut_off, "cut off"),
        (sample.breaches, "breaches"),
    ];
    let faults = faults.iter().filter(|(n, _)| *n > 0);
    let faults: Vec<String> = faults.map(|(n, what)| format!("{} {what}", thousands(*n))).collect();
    paint.red(&format!("not every limit was kept: {}", faults.join(", ")))
}
