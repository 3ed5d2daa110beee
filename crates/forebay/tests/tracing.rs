//! What a subscriber of `tracing` sees: a span for each background step, with
//! the source's name, and the pool's events.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Yard, ms, pass, secs};
use forebay::{Pool, Returned};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the names of spans and the sources they name.
#[derive(Clone, Default)]
struct Spans {
    seen: Arc<Mutex<Vec<(String, String)>>>,
    events: Arc<AtomicU64>,
}

struct Source(Option<String>);

impl Visit for Source {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "source" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("forebay")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut source = Source(None);
        attributes.record(&mut source);
        let name = attributes.metadata().name().to_owned();
        let mut seen = self.seen.lock().expect("spans");
        seen.push((name, source.0.unwrap_or_default()));
        Id::from_u64(seen.len() as u64)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, _event: &Event<'_>) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn every_background_step_is_a_span_that_names_its_source() {
    let spans = Spans::default();
    let _default = tracing::subscriber::set_default(spans.clone());
    let pool = Pool::builder(Yard::new())
        .max_open(1)
        .idle_check(Some(secs(30)))
        .stagger(None)
        .build()
        .expect("valid");
    let mut conn = pool.get().await.expect("one");
    conn.state = Returned::NeedsReset;
    drop(conn);
    pass(secs(31)).await;
    pool.invalidate();
    pass(ms(10)).await;
    let seen = spans.seen.lock().expect("spans").clone();
    let named: Vec<(&str, &str)> = seen.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let expected = ["open", "reset", "check", "close", "open"].map(|name| (name, "default"));
    assert_eq!(named, expected);
    assert!(spans.events.load(Ordering::Relaxed) >= 4, "opened, low, discarded, released, …");
}
