//! The script in Redis against the ledger in Rust: the same reports, the same
//! instants, the same answers, the same books. Members join, leave, vanish, lose
//! answers, repeat themselves, lie; weights and limits change; the server's clock
//! and run id change under them. The instant of each step is read back from
//! Redis, so nothing that depends on time is left out.
//!
//! FOREBAY_TEST_REDIS is the server; FOREBAY_TEST_SEED runs one sequence alone.

#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod redis_support;

use std::collections::BTreeMap;

use fastrand::Rng;
use forebay_fleet::{
    Answer, Entry, Keeper, Ledger, Limits, MemberId, Moment, News, RedisKeeper, Report, Window,
};
use redis::aio::MultiplexedConnection;
use redis_support::{Player, keeper, key, profile, raw, shared_url, unique};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const SEQUENCES: u64 = 200;
const STEPS: usize = 60;

/// One backend, kept twice.
struct Twin {
    keeper: RedisKeeper,
    raw: MultiplexedConnection,
    backend: String,
    ledger: Option<Ledger>,
    expected_news: Vec<MemberId>,
    seen: BTreeMap<&'static str, u64>,
}

impl Twin {
    async fn new(url: &str, backend: String) -> Self {
        let (keeper, raw) = (keeper(url), raw(url).await);
        let (expected_news, seen) = (Vec::new(), BTreeMap::new());
        Self { keeper, raw, backend, ledger: None, expected_news, seen }
    }

    /// Counts what a step was about, so that a test can tell that all of it happened.
    fn see(&mut self, answer: &Answer, reaped: usize, news: usize, window: Option<Window>) {
        let mut see = |what, count: usize| *self.seen.entry(what).or_default() += count as u64;
        see("reaped others", reaped);
        see("news", news);
        see("lossy window", usize::from(window.is_some_and(|window| window.lossy)));
        see("clock window", usize::from(window.is_some_and(|window| !window.trusting)));
        match answer {
            Answer::Stale => see("stale", 1),
            Answer::Reaped => see("reaped", 1),
            Answer::Booked(booking) => {
                see("granted", usize::from(booking.held > 0));
                see("recalled", usize::from(booking.recall > 0));
                see("contended", usize::from(booking.contended));
                see("share", usize::from(booking.share > 0));
                see("over the limit", usize::from(booking.total > booking.limit));
            }
        }
    }

    async fn book(&mut self) -> BTreeMap<String, String> {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(key(&self.backend, "book")).query_async(&mut self.raw).await.expect("a book")
    }

    /// Changes a field of the book behind everybody's back.
    async fn forge(&mut self, field: &str, value: &str) {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(key(&self.backend, "book")).arg(field).arg(value);
        cmd.exec_async(&mut self.raw).await.expect("a forged book");
    }

    /// Gives a page the times of an entry that waited since `before`.
    async fn forge_page(&mut self, member: &MemberId, entry: &Entry, before: Option<u64>) {
        let [members, expiry, waiting] =
            ["members", "expiry", "waiting"].map(|name| key(&self.backend, name));
        let name = member.as_str();
        let mut cmd = redis::cmd("HGET");
        let page: String =
            cmd.arg(&members).arg(name).query_async(&mut self.raw).await.expect("a page");
        let mut page: BTreeMap<String, u64> = serde_json::from_str(&page).expect("a page");
        page.insert("joined".to_owned(), entry.joined_ms);
        page.insert("renewed".to_owned(), entry.renewed_ms);
        page.insert("since".to_owned(), entry.waiting_since_ms.unwrap_or(0));
        let mut pipe = redis::pipe();
        let text = serde_json::to_string(&page).expect("a page");
        pipe.cmd("HSET").arg(&members).arg(name).arg(text);
        let until = entry.renewed_ms + entry.profile.reclaim_ms;
        pipe.cmd("ZADD").arg(&expiry).arg(until).arg(name);
        if let (Some(before), Some(after)) = (before, entry.waiting_since_ms) {
            let score = f64::from(entry.held + entry.reserved) / f64::from(entry.profile.weight);
            pipe.cmd("ZREM").arg(&waiting).arg(format!("{before:015}:{name}"));
            pipe.cmd("ZADD").arg(&waiting).arg(score).arg(format!("{after:015}:{name}"));
        }
        pipe.exec_async(&mut self.raw).await.expect("a forged page");
    }

    /// Reports to both, and compares.
    async fn report(&mut self, report: &Report) -> Answer {
        let answer = self.keeper.report(report).await.expect("an answer");
        let book = self.book().await;
        let now_ms = book["last_ms"].parse().expect("a time");
        let moment = Moment { now_ms, run_id: &book["run_id"], by_time: true };
        let fresh = || Ledger::unknown(report.nonce, report.profile.ttl_ms, moment);
        let mut ledger = self.ledger.take().unwrap_or_else(fresh);
        let before = ledger.clone();
        let stepped = ledger.step(report, moment);
        assert_eq!(
            answer, stepped.answer,
            "redis first, then the ledger\nat {now_ms}, for {report:#?}\nbefore {before:#?}\nafter {ledger:#?}"
        );
        self.see(&answer, stepped.reaped.len(), stepped.news.len(), ledger.window);
        self.expected_news.extend(stepped.news);
        self.compare(&ledger, &book, &format!("{report:#?}\nbefore {before:#?}")).await;
        self.ledger = Some(ledger);
        answer
    }

    /// Every page, every sum and every index.
    async fn compare(&mut self, ledger: &Ledger, book: &BTreeMap<String, String>, story: &str) {
        let number = |name: &str| book[name].parse::<u64>().expect("a number");
        let window = Window {
            until_ms: number("window_until"),
            lossy: book["window_lossy"] == "1",
            trusting: book["window_trusting"] == "1",
        };
        assert_eq!((window.until_ms > 0).then_some(window), ledger.window, "{story}");
        assert_eq!(book["generation"], ledger.generation);
        assert_eq!(number("windows"), ledger.windows);
        assert_eq!(number("heard_ms"), ledger.heard_ms, "{story}");
        assert_eq!(number("paused_until"), ledger.paused_until_ms);
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(key(&self.backend, "members"));
        for index in ["expiry", "waiting", "rich", "opens", "rates", "bursts"] {
            pipe.cmd("ZRANGE").arg(key(&self.backend, index)).arg(&["0", "-1", "WITHSCORES"]);
        }
        pipe.cmd("MGET").arg(key(&self.backend, "count")).arg(key(&self.backend, "max"));
        type Index = Vec<(String, f64)>;
        type Stored = (
            BTreeMap<String, String>,
            Index,
            Index,
            Index,
            Index,
            Index,
            Index,
            (Option<u32>, Option<u32>),
        );
        let (pages, expiry, waiting, rich, opens, rates, bursts, (count, max)): Stored =
            pipe.query_async(&mut self.raw).await.expect("the books");
        assert_eq!(pages.len(), ledger.members.len(), "{story}");
        let mut sums = BTreeMap::<&str, u64>::new();
        let mut indexes = [const { Vec::<(String, f64)>::new() }; 6];
        for (member, entry) in &ledger.members {
            let page: BTreeMap<String, u64> =
                serde_json::from_str(&pages[member.as_str()]).expect("a page");
            let name = member.as_str().to_owned();
            let (weight, limits) = (entry.profile.weight, entry.profile.limits);
            let expected = [
                ("seq", entry.seq),
                ("held", entry.held.into()),
                ("reserved", entry.reserved.into()),
                ("recall", entry.recall.into()),
                ("expected", entry.expected.into()),
                ("want", entry.want.into()),
                ("waiters", entry.waiters.into()),
                ("since", entry.waiting_since_ms.unwrap_or(0)),
                ("share", entry.share.into()),
                ("joined", entry.joined_ms),
                ("renewed", entry.renewed_ms),
                ("declared", entry.declared),
                ("weight", weight.into()),
            ];
            for (field, value) in expected {
                assert_eq!(page[field], value, "{field} of {member}\n{story}");
            }
            let booked = entry.held + entry.reserved;
            let unmet = entry.want.saturating_sub(booked);
            *sums.entry("total").or_default() += u64::from(booked);
            *sums.entry("recall").or_default() += u64::from(entry.recall);
            *sums.entry("expected").or_default() += u64::from(entry.expected);
            *sums.entry("unmet").or_default() += u64::from(unmet);
            *sums.entry("weight").or_default() += u64::from(weight);
            *sums.entry("shares").or_default() += u64::from(entry.share);
            *sums.entry("members").or_default() += 1;
            let [in_expiry, in_waiting, in_rich, in_opens, in_rates, in_bursts] = &mut indexes;
            in_expiry.push((name.clone(), (entry.renewed_ms + entry.profile.reclaim_ms) as f64));
            if unmet > 0 {
                let since = entry.waiting_since_ms.expect("whoever waits has begun to");
                *sums.entry("waiting").or_default() += 1;
                let score = f64::from(booked) / f64::from(weight);
                in_waiting.push((format!("{since:015}:{name}"), score));
            }
            let lasting = booked.saturating_sub(entry.recall);
            let left = f64::from(lasting) - 1.0;
            let riches = if lasting == 0 { -1.0 } else { left / f64::from(weight) };
            in_rich.push((name.clone(), riches));
            let newest_first = f64::from(Limits::VERSION_MAX - limits.version) * 4_194_304.0;
            in_opens.push((name.clone(), newest_first + f64::from(limits.open)));
            if limits.rate > 0 {
                in_rates.push((name.clone(), newest_first + f64::from(limits.rate)));
            }
            if limits.burst > 0 {
                in_bursts.push((name, newest_first + f64::from(limits.burst)));
            }
        }
        for (sum, value) in
            ["total", "recall", "expected", "unmet", "weight", "shares", "members", "waiting"]
                .map(|sum| (sum, sums.get(sum).copied().unwrap_or(0)))
        {
            assert_eq!(number(sum), value, "the sum {sum}\n{story}");
        }
        for (found, mut expected) in
            [expiry, waiting, rich, opens, rates, bursts].into_iter().zip(indexes)
        {
            expected.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
            assert_eq!(found, expected, "{story}");
        }
        assert_eq!(count.unwrap_or(0), ledger.total(), "count is what operators read");
        if !ledger.members.is_empty() {
            assert_eq!(max, Some(ledger.limits().0.open), "max is what operators read");
        }
    }
}

/// One sequence, told by its seed.
async fn play(twin: &mut Twin, rng: &mut Rng) {
    // some with all time in the world, some in which members expire all the time
    let hurried = rng.bool();
    // with few slots some get one only when it is their turn
    let most = if rng.bool() { 3 } else { 24 };
    let mut base = profile(rng.u32(1..=most));
    if hurried {
        base.ttl_ms = rng.u64(5..30);
        base.heartbeat_ms = rng.u64(1..5);
        base.margin_ms = rng.u64(1..5);
        base.reclaim_ms = base.ttl_ms + rng.u64(0..30);
    }
    base.divisor = rng.u32(0..4);
    let calm = rng.u32(0..3) > 0;
    if calm {
        assert!(twin.keeper.setup(&twin.backend).await.expect("a setup"));
        let book = twin.book().await;
        let now_ms = book["last_ms"].parse().expect("a time");
        let moment = Moment { now_ms, run_id: &book["run_id"], by_time: true };
        let nonce = u64::from_str_radix(&book["generation"], 16).expect("hexadecimal");
        twin.ledger = Some(Ledger::ready(nonce, moment));
    }
    let names = rng.usize(2..=6);
    let mut players: Vec<Player> = Vec::new();
    let mut last: Option<Report> = None;
    let mut epoch = 0;
    for _ in 0..STEPS {
        if hurried && rng.u32(0..3) == 0 {
            let pause = std::time::Duration::from_millis(rng.u64(1..8));
            tokio::time::sleep(pause).await;
        }
        if rng.u32(0..40) == 0 {
            disturb(twin, rng).await;
        }
        if players.len() < names && (players.len() < 2 || rng.u32(0..4) == 0) {
            epoch += 1;
            let mut profile = base.clone();
            profile.weight = [1, 1, 1, 2, 3, 7][rng.usize(0..6)];
            let mut player = Player::new(&twin.backend, "x", profile);
            player.member = MemberId::new(&format!("m{}", rng.u32(0..9)), epoch);
            players.push(player);
        }
        let index = rng.usize(0..players.len());
        let player = &mut players[index];
        let roll = rng.u32(0..100);
        if roll < 3 {
            // it says nothing any more
            players.remove(index);
            continue;
        }
        if let Some(last) = last.as_ref().filter(|_| roll < 8) {
            let again = twin.report(last).await;
            assert!(matches!(again, Answer::Stale | Answer::Reaped | Answer::Booked(_)));
            continue;
        }
        vary(&mut player.profile, &base.limits, rng);
        let held = if rng.bool() { player.held } else { rng.u32(0..=player.held) };
        let want = held + [0, 0, 1, 2, 5, 40][rng.usize(0..6)];
        let mut report = player.report(held, want);
        report.waiters = if rng.bool() { want - held } else { 0 };
        match roll {
            8..12 => report.held += rng.u32(1..4),
            12..15 => report.seq = rng.u64(0..=report.seq),
            15..19 => (report.leave, report.held) = (true, 0),
            19..21 => report.pause_ms = rng.u64(1..20),
            21..23 => report.elapsed_ms = Some(0),
            23..26 => report.share = 0,
            26..30 => report.elapsed_ms = Some(100_000),
            _ => {}
        }
        let answer = twin.report(&report).await;
        match answer {
            // an answer that got lost; what it said is learnt later
            Answer::Booked(_) if roll >= 90 => player.held = held,
            Answer::Booked(booking) => {
                (player.held, player.share) = (booking.held, booking.share);
                if report.leave && report.held == 0 {
                    players.remove(index);
                }
            }
            Answer::Reaped => drop(players.remove(index)),
            Answer::Stale => {}
        }
        last = Some(report);
    }
}

/// Another server, or another time on its clock, as far as the books can tell.
async fn disturb(twin: &mut Twin, rng: &mut Rng) {
    let Some(mut ledger) = twin.ledger.take() else { return };
    if rng.bool() {
        twin.forge("run_id", "0123456789").await;
        ledger.run_id = "0123456789".to_owned();
    } else {
        // what has happened lies in the future, all of it
        const STEP_MS: u64 = 1_000_000;
        ledger.last_ms += STEP_MS;
        ledger.heard_ms += STEP_MS;
        ledger.paused_until_ms += STEP_MS;
        twin.forge("last_ms", &ledger.last_ms.to_string()).await;
        twin.forge("heard_ms", &ledger.heard_ms.to_string()).await;
        twin.forge("paused_until", &ledger.paused_until_ms.to_string()).await;
        if let Some(window) = &mut ledger.window {
            window.until_ms += STEP_MS;
            twin.forge("window_until", &window.until_ms.to_string()).await;
        }
        for (member, entry) in &mut ledger.members {
            let before = entry.waiting_since_ms;
            entry.joined_ms += STEP_MS;
            entry.renewed_ms += STEP_MS;
            entry.waiting_since_ms = before.map(|since| since + STEP_MS);
            twin.forge_page(member, entry, before).await;
        }
    }
    twin.ledger = Some(ledger);
}

fn vary(profile: &mut forebay_fleet::Profile, base: &Limits, rng: &mut Rng) {
    match rng.u32(0..30) {
        0 => profile.weight = rng.u32(1..=9),
        1 => profile.limits.version = rng.u32(0..3),
        2 => profile.limits.open = rng.u32(0..=base.open * 2),
        3 => profile.limits.rate = rng.u32(0..200),
        4 => profile.limits.burst = rng.u32(0..200),
        _ => {}
    }
}

/// Everything announced for one backend, up to a mark.
async fn announced(twin: &mut Twin, news: &mut UnboundedReceiver<News>) -> Vec<MemberId> {
    let mut cmd = redis::cmd("PUBLISH");
    cmd.arg(key(&twin.backend, "news")).arg(r#"["the end"]"#);
    cmd.exec_async(&mut twin.raw).await.expect("published");
    let mut all = Vec::new();
    loop {
        let one = tokio::time::timeout(redis_support::LONG, news.recv());
        let one = one.await.expect("in time").expect("the listener lives");
        if one.member.as_str() == "the end" {
            all.sort();
            return all;
        }
        assert_eq!(one.backend, twin.backend);
        all.push(one.member);
    }
}

#[tokio::test]
async fn the_script_gives_the_answers_of_the_ledger_and_keeps_its_books() {
    let Some(url) = shared_url() else { return };
    let one: Option<u64> = std::env::var("FOREBAY_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = one.map_or(0..SEQUENCES, |seed| seed..seed + 1);
    let seeds = std::sync::Arc::new(tokio::sync::Mutex::new(seeds));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (url, seeds) = (url.clone(), seeds.clone());
        tasks.spawn(async move {
            let mut seen = BTreeMap::<&str, u64>::new();
            loop {
                let Some(seed) = seeds.lock().await.next() else { return seen };
                println!("FOREBAY_TEST_SEED={seed}");
                let one = Twin::new(&url, unique(&format!("differential-seed-{seed}")));
                let mut twin = one.await;
                play(&mut twin, &mut Rng::with_seed(seed)).await;
                for (what, count) in &twin.seen {
                    *seen.entry(what).or_default() += count;
                }
            }
        });
    }
    let mut seen = BTreeMap::<&str, u64>::new();
    while let Some(done) = tasks.join_next().await {
        for (what, count) in done.expect("equal") {
            *seen.entry(what).or_default() += count;
        }
    }
    println!("{seen:?}");
    if one.is_none() {
        assert!(seen.len() == 11 && seen.values().all(|count| *count > 20), "{seen:?}");
    }
}

#[tokio::test]
async fn the_script_announces_what_the_ledger_calls_news() {
    let Some(url) = shared_url() else { return };
    for seed in 1000..1020 {
        println!("FOREBAY_TEST_SEED={seed}");
        let backend = unique("news");
        let mut twin = Twin::new(&url, backend.clone()).await;
        // a keeper of its own listens, which has asked about the backend before
        let listener = keeper(&url);
        let mut stranger = Player::new(&backend, "stranger", profile(1)).report(0, 0);
        stranger.seq = 2;
        drop(listener.report(&stranger).await.expect("an answer"));
        let mut cmd = redis::cmd("DEL");
        cmd.arg(key(&backend, "book")).exec_async(&mut twin.raw).await.expect("forgotten");
        let (sender, mut news) = unbounded_channel();
        let listening = tokio::spawn(async move { listener.listen(sender).await });
        let channel = key(&backend, "news");
        redis_support::until("the listener has subscribed", async || {
            let mut cmd = redis::cmd("PUBSUB");
            cmd.arg("NUMSUB").arg(&channel);
            let (_, count): (String, u32) = cmd.query_async(&mut twin.raw).await.expect("a count");
            (count > 0).then_some(())
        })
        .await;
        play(&mut twin, &mut Rng::with_seed(seed)).await;
        let found = announced(&mut twin, &mut news).await;
        let mut expected = std::mem::take(&mut twin.expected_news);
        expected.sort();
        assert_eq!(found, expected);
        listening.abort();
    }
}
