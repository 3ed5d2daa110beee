//! Scenario files: the shipped ones load, those of the seeds' simulator are read
//! unchanged, what is left out has its documented value, every key is read, and what
//! cannot be run is refused at its line and column.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_fleet::OnLoss;
use forebay_sim::{
    Action, Arrivals, Assertions, BackendModel, ClockModel, Coordinator, Event, Refusal, Scenario,
    Service, Spread, Workload,
};

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn load(name: &str) -> Scenario {
    Scenario::load(shipped().join(name).with_extension("yaml")).expect("a shipped scenario")
}

fn parse(text: &str) -> Scenario {
    Scenario::parse(text, "folder/test.yaml").expect("a scenario")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn usual_backend() -> BackendModel {
    BackendModel {
        name: "backend".to_owned(),
        copies: 1,
        open: Some(10_000),
        rate: Some(100),
        burst: 1_000,
        reserve: 0,
        rate_reserve: 0,
        handshake: Spread::Percentiles { p50: Duration::from_micros(15_500), p99: ms(120) },
        fail: 0.0,
        hang: 0.0,
        lifetime: Some(s(3600)),
        refusal: Refusal::Coded,
        let_go: Spread::Fixed(ms(1)),
    }
}

fn usual_coordinator() -> Coordinator {
    Coordinator {
        announces: true,
        latency: Spread::Percentiles { p50: ms(1), p99: ms(5) },
        loss: 0.0,
        on_loss: OnLoss::Share,
        ttl: s(30),
        heartbeat: s(10),
        margin: s(5),
        request_timeout: s(2),
        reclaim_after: s(30),
        divisor: 3,
        is_set_up: true,
    }
}

fn usual_service(name: &str, target: u32) -> Service {
    Service {
        name: name.to_owned(),
        instances: 1,
        backends: Vec::new(),
        target_ready: target,
        max_open: target,
        min_idle: None,
        low_watermark: None,
        max_opening: 16,
        base_lifetime: s(660),
        lifetime_jitter: s(120),
        guard_window: s(45),
        max_idle: Some(s(300)),
        connect_timeout: s(10),
        start_delay: Duration::ZERO,
        start_step: Duration::ZERO,
        weight: 1,
        clock: ClockModel::default(),
        workload: None,
    }
}

fn usual_scenario() -> Scenario {
    Scenario {
        name: "test".to_owned(),
        seed: 1,
        duration: s(60),
        sample_every: s(1),
        backends: vec![usual_backend()],
        coordinator: Some(usual_coordinator()),
        services: vec![usual_service("web", 5)],
        events: Vec::new(),
        assertions: Assertions { open_cap: true, ..Assertions::default() },
        expect_failures: Vec::new(),
    }
}

#[test]
fn every_shipped_file_loads_and_says_first_what_it_shows() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(shipped()).expect("scenarios/ at the root") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a file of text");
        assert!(text.starts_with("# "), "{}: begins without a comment", path.display());
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Some(scenario.name.as_str()), path.file_stem().and_then(|stem| stem.to_str()));
        let meant_to_fail = text.contains("Meant to fail");
        assert_eq!(meant_to_fail, !scenario.expect_failures.is_empty(), "{}", scenario.name);
        names.push(scenario.name);
    }
    for name in [
        "local",
        "ecs-150wps",
        "ecs-400wps",
        "mass-drop",
        "workload-test",
        "rolling-restart",
        "thundering-herd",
        "coordinator-outage",
        "throttled-without-code",
        "sql-server-120-buckets",
        "internet-scale",
    ] {
        assert!(names.iter().any(|other| other == name), "{name} is not shipped");
    }
}

#[test]
fn the_seeds_scenarios_have_the_seeds_values() {
    for (name, minutes, services, total, converge, zero_empty, step) in [
        ("local", 20, 4, 200, 60, true, 100),
        ("ecs-150wps", 30, 20, 2_000, 60, true, 50),
        ("ecs-400wps", 30, 44, 22_000, 300, false, 50),
        ("mass-drop", 15, 4, 200, 60, true, 100),
        ("workload-test", 5, 4, 200, 10, true, 100),
    ] {
        let scenario = load(name);
        assert_eq!(scenario.duration, s(minutes * 60), "{name}");
        assert_eq!(scenario.sample_every, s(1), "{name}");
        assert_eq!(scenario.services.len(), services, "{name}");
        let targets = scenario.services.iter().map(|service| service.target_ready);
        assert_eq!(targets.sum::<u32>(), total, "{name}");
        for (i, service) in scenario.services.iter().enumerate() {
            assert_eq!(service.start_delay, ms(step * i as u64), "{name}");
            let usual = usual_service(&service.name, service.target_ready);
            let Service { start_delay, workload, max_opening, .. } = service.clone();
            assert_eq!(*service, Service { start_delay, workload, max_opening, ..usual }, "{name}");
        }
        assert_eq!(scenario.backends[0].rate, Some(100), "{name}");
        let asserted = &scenario.assertions;
        assert_eq!(asserted.max_connects_per_second, Some(100), "{name}");
        assert_eq!(asserted.converge_within, Some(s(converge)), "{name}");
        assert_eq!(asserted.stable_for, Some(s(5)), "{name}");
        assert_eq!(asserted.zero_empty, zero_empty, "{name}");
        assert!(asserted.open_cap, "{name}");
        // no word of our own in these, so they are what users come with
        let text = std::fs::read_to_string(shipped().join(name).with_extension("yaml"));
        assert!(!text.expect("a file").contains("target_ready"), "{name}");
    }
    let history = load("workload-test").services.remove(0).workload.expect("a workload");
    let usual = Workload {
        arrivals: Arrivals::Bursts { size: 10, every: ms(100) },
        hold: Spread::Uniform(ms(10), ms(15)),
        max_wait: s(5),
        max_in_use: Some(30),
        priorities: [0.0, 1.0, 0.0],
        starts_after: Duration::ZERO,
    };
    assert_eq!(history, usual);
    let services = Vec::new();
    let action = Action::Drop { fraction: 0.5, idle: true, in_use: true, services };
    let drop = Event { at: s(300), action, recover_within: Some(s(60)) };
    assert_eq!(load("mass-drop").events, [drop]);
}

/// Every key that the Go simulator reads, in a file as it would be written for it.
const SEEDS_FILE: &str = "
seed: 7
endpoint: my-cluster.dsql.us-east-1.on.aws
duration: 30m
sampleEvery: 2s
limiterPerSec: 90
assertMaxConnectsPerSec: 95
assertConvergeWithin: 1m30s
assertStableFor: 5s
assertMaxClosurePerSec: 40
assertZeroEmptyEvents: true
scenario:
  kind: rolling_restart
  rollEvery: 20s
  dropAt: 0s
  dropFraction: 0
services:
  - name: history
    targetReady: 50
    guardWindow: 30s
    baseLifetime: 10m
    jitter: 1m
    startDelay: 250ms
    workload:
      enabled: true
      maxInUse: 30
      holdTime: 10ms
      holdJitter: 5ms
      spawnEvery: 100ms
      arrivalBurst: 10
      maxWait: 5s
  - name: worker
    targetReady: 20
    workload:
      enabled: false
      spawnEvery: 1s
";

#[test]
fn a_seeds_file_is_read_unchanged() {
    let expected = Scenario {
        seed: 7,
        duration: s(1800),
        sample_every: s(2),
        backends: vec![BackendModel {
            name: "my-cluster.dsql.us-east-1.on.aws".to_owned(),
            rate: Some(90),
            ..usual_backend()
        }],
        services: vec![
            Service {
                guard_window: s(30),
                base_lifetime: s(600),
                lifetime_jitter: s(60),
                start_delay: ms(250),
                workload: Some(Workload {
                    arrivals: Arrivals::Bursts { size: 10, every: ms(100) },
                    hold: Spread::Uniform(ms(10), ms(15)),
                    max_wait: s(5),
                    max_in_use: Some(30),
                    priorities: [0.0, 1.0, 0.0],
                    starts_after: Duration::ZERO,
                }),
                ..usual_service("history", 50)
            },
            usual_service("worker", 20),
        ],
        events: vec![Event {
            at: s(600),
            action: Action::RollingRestart { every: s(20), services: Vec::new() },
            recover_within: None,
        }],
        assertions: Assertions {
            max_connects_per_second: Some(95),
            converge_within: Some(s(90)),
            stable_for: Some(s(5)),
            max_closures_per_second: Some(40),
            zero_empty: true,
            open_cap: true,
            ..Assertions::default()
        },
        ..usual_scenario()
    };
    assert_eq!(parse(SEEDS_FILE), expected);
}

#[test]
fn the_seeds_keys_with_zero_assert_nothing() {
    let text = "{duration: 1m, services: [{name: web, targetReady: 5}], assertMaxConnectsPerSec: 0, \
                assertConvergeWithin: 0s, assertStableFor: 0, assertMaxClosurePerSec: 0.0, \
                assertZeroEmptyEvents: false, scenario: {kind: cold_start, rollEvery: 0s}}";
    assert_eq!(parse(text), usual_scenario());
}

#[test]
fn what_is_left_out_is_what_is_written_in_full() {
    let short = parse("duration: 1m\nservices: [{name: web, target_ready: 5}]\n");
    assert_eq!(short, usual_scenario());
    let full = parse(
        "
name: test
seed: 1
duration: 1m
sample_every: 1s
backends:
  - {name: backend, copies: 1, open: 10000, rate: 100, burst: 1000, reserve: 0, rate_reserve: 0,
     handshake: {p50: 15.5ms, p99: 120ms}, fail: 0, hang: 0%, lifetime: 1h, refusal: coded,
     let_go: 1ms}
coordinator: {kind: redis, announces: true, latency: {p50: 1ms, p99: 5ms}, loss: 0, on_loss: share,
  ttl: 30s, heartbeat: 10s, margin: 5s, request_timeout: 2s, reclaim_after: 30s, divisor: 3,
  is_set_up: true}
services:
  - {name: web, instances: 1, target_ready: 5, max_open: 5, max_opening: 16, base_lifetime: 11m,
     lifetime_jitter: 2m, guard_window: 45s, max_idle: 5m, connect_timeout: 10s, start_delay: 0,
     start_step: 0s, weight: 1, clock: {offset: 0, drift_ppm: 0}}
events: []
assert: {open_cap: true}
expect_failures: []
",
    );
    assert_eq!(short, full);
    for same in ["coordinator: redis", "coordinator: {}", "backend: {}", "scenario: {}"] {
        let text = format!("duration: 1m\nservices: [{{name: web, target_ready: 5}}]\n{same}\n");
        assert_eq!(parse(&text), short, "{same}");
    }
}

/// No value here is the usual one, so a key that is not read shows.
#[test]
fn every_key_of_ours_is_read() {
    let folder = std::env::temp_dir().join(format!("forebay-sim-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let instants = "# when requests came\n\n0\n  1.5s\n1.5s\n2m\n";
    std::fs::write(folder.join("trace.txt"), instants).expect("a trace");
    let text = include_str!("files/full.yaml");
    let scenario = Scenario::parse(text, folder.join("x.yaml"));
    std::fs::remove_dir_all(&folder).expect("the folder is gone again");
    let workload = |arrivals, hold| Workload {
        arrivals,
        hold,
        max_wait: s(30),
        max_in_use: None,
        priorities: [0.0, 1.0, 0.0],
        starts_after: Duration::ZERO,
    };
    let web = || vec!["web".to_owned()];
    let event = |at, action| Event { at: s(at), action, recover_within: None };
    let expected = Scenario {
        name: "full".to_owned(),
        seed: 99,
        duration: s(3600),
        sample_every: ms(500),
        backends: vec![
            BackendModel {
                name: "left".to_owned(),
                copies: 3,
                open: Some(50),
                rate: Some(7),
                burst: 9,
                reserve: 2,
                rate_reserve: 1,
                handshake: Spread::Uniform(ms(5), ms(9)),
                fail: 0.01,
                hang: 0.02,
                lifetime: None,
                refusal: Refusal::Silent,
                let_go: Spread::Exponential(ms(3)),
            },
            BackendModel { name: "right".to_owned(), open: None, rate: None, ..usual_backend() },
        ],
        coordinator: Some(Coordinator {
            announces: false,
            latency: Spread::Fixed(ms(4)),
            loss: 0.1,
            on_loss: OnLoss::Fence,
            ttl: s(60),
            heartbeat: s(11),
            margin: s(6),
            request_timeout: s(3),
            reclaim_after: s(3900),
            divisor: 5,
            is_set_up: false,
        }),
        services: vec![
            Service {
                instances: 4,
                backends: vec!["right".to_owned(), "left".to_owned()],
                max_open: 20,
                min_idle: Some(2),
                low_watermark: Some(3),
                max_opening: 8,
                base_lifetime: s(1200),
                lifetime_jitter: s(60),
                guard_window: s(20),
                max_idle: None,
                connect_timeout: s(4),
                start_delay: ms(100),
                start_step: ms(20),
                weight: 3,
                clock: ClockModel { offset: ms(40), drift_ppm: 12.5 },
                workload: Some(Workload {
                    arrivals: Arrivals::Poisson(2.5),
                    hold: Spread::Percentiles { p50: ms(8), p99: ms(60) },
                    max_wait: s(3),
                    max_in_use: Some(6),
                    priorities: [0.2, 0.5, 0.3],
                    starts_after: s(30),
                }),
                ..usual_service("web", 10)
            },
            Service {
                backends: vec!["right".to_owned()],
                workload: Some(workload(Arrivals::Constant(10.0), Spread::Fixed(ms(10)))),
                ..usual_service("batch", 4)
            },
            Service {
                workload: Some(workload(
                    Arrivals::Bursts { size: 3, every: s(1) },
                    Spread::Exponential(ms(50)),
                )),
                ..usual_service("burst", 4)
            },
            Service {
                workload: Some(workload(
                    Arrivals::Trace(vec![Duration::ZERO, ms(1500), ms(1500), s(120)]),
                    Spread::Fixed(ms(10)),
                )),
                ..usual_service("traced", 4)
            },
        ],
        // in order of time, which the file is not
        events: vec![
            Event {
                at: s(60),
                action: Action::Drop { fraction: 0.5, idle: false, in_use: true, services: web() },
                recover_within: Some(s(45)),
            },
            event(120, Action::RollingRestart { every: s(10), services: web() }),
            event(
                180,
                Action::Crash { fraction: 0.25, restart_after: Some(s(7)), services: web() },
            ),
            event(181, Action::Crash { fraction: 1.0, restart_after: None, services: web() }),
            event(240, Action::Pause { fraction: 1.0, lasts: s(40), services: Vec::new() }),
            event(300, Action::Partition { fraction: 0.75, lasts: s(50), services: web() }),
            event(360, Action::CoordinatorOutage { lasts: s(60), keeps_data: false }),
            event(
                420,
                Action::BackendOutage {
                    lasts: s(20),
                    drops: false,
                    backends: vec!["left".to_owned()],
                },
            ),
            event(480, Action::Scale { service: "web".to_owned(), instances: 9 }),
            event(540, Action::Load { factor: 1.5, lasts: s(30), services: web() }),
        ],
        assertions: Assertions {
            max_connects_per_second: Some(8),
            converge_within: Some(s(61)),
            stable_for: Some(s(62)),
            max_closures_per_second: Some(63),
            zero_empty: true,
            recover_within: Some(s(64)),
            open_cap: false,
            max_wasted: Some(65),
            wait_p50: Some(ms(1)),
            wait_p99: Some(ms(2)),
            wait_max: Some(ms(3)),
            max_failed: Some(66),
            fair_within: Some(0.02),
            max_refused: Some(67),
        },
        expect_failures: vec!["wait_max".to_owned(), "zero_empty".to_owned()],
    };
    assert_eq!(scenario, Ok(expected));
}

#[test]
fn what_services_share_can_be_said_once() {
    let text = "
duration: 1m
services:
  - &usual {name: web, target_ready: 5, weight: 2}
  - {<<: *usual, name: batch, weight: 3}
";
    let services = parse(text).services;
    assert_eq!(services[0], Service { weight: 2, ..usual_service("web", 5) });
    assert_eq!(services[1], Service { weight: 3, ..usual_service("batch", 5) });
}
