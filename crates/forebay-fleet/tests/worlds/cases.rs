//! FLEET.md 10 (a) to (g), one by one: default times, peers that always want more
//! than the limit, and a backend that counts.

use std::time::Duration;

use forebay_fleet::{BackendLimits, Link, OnLoss};

use crate::block_on;
use crate::plan::{Act, Plan, Restart};
use crate::process::Process;
use crate::scene::Scene;

const LIMIT: u32 = 12;
const POLICIES: [OnLoss; 3] = [OnLoss::Share, OnLoss::Fence, OnLoss::Hold];

async fn three(policy: OnLoss) -> Scene {
    let scene = Scene::new(Plan::still(3, policy, BackendLimits::new(LIMIT, 100, 100))).await;
    scene.run(25.0).await;
    assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [4, 4, 4]);
    scene
}

fn ready(process: &Process) -> u32 {
    process.pool.stats().ready()
}

#[test]
fn a_stop_shorter_than_ttl_less_margin_heartbeat_and_timeout_has_no_effect() {
    for phase in 0..10 {
        block_on(async {
            let scene = three(OnLoss::Fence).await;
            scene.run(f64::from(phase) * 1.03).await;
            let before = scene.backend.connects();
            scene.process(0).freeze(false);
            scene.watch(12.9, |scene| assert!(scene.open() <= LIMIT as usize)).await;
            scene.process(0).thaw(false);
            scene.run(15.0).await;
            assert_eq!(scene.backend.connects(), before, "phase {phase}: something was closed");
            assert_eq!((scene.reaped(0), scene.open_by(0)), (0, 4));
        });
    }
}

#[test]
fn b_a_longer_stop_exceeds_the_limit_by_no_more_than_the_stopped_ones_leases() {
    for policy in POLICIES {
        block_on(async {
            let scene = three(policy).await;
            let renewed = scene.renewed(0);
            let (most, held) = (LIMIT as usize, scene.open_by(0));
            scene.process(0).freeze(false);
            // the judge holds them to the bound; here it must be reached, and not too early
            scene
                .watch(60.0, |scene| {
                    let dead = scene.time() > renewed + 30.0;
                    assert!(scene.open() <= most || dead && scene.open() <= most + held);
                })
                .await;
            assert_eq!(
                scene.open(),
                most + held,
                "{policy:?}: peers have all, it still has its own"
            );
            scene.process(0).thaw(true);
            let old = forebay::Instant::now();
            scene.run(11.0).await;
            let sockets = scene.backend.sockets();
            assert!(sockets.iter().all(|s| s.process != 0 || s.opened_at > old), "{policy:?}");
            scene.watch(40.0, |scene| assert!(scene.open() <= most)).await;
            assert_eq!((scene.reaped(0), scene.open_by(0)), (1, 4), "{policy:?}");
        });
    }
}

#[test]
fn b_a_checkout_begun_after_a_long_stop_gets_no_old_connection() {
    for policy in POLICIES {
        block_on(async {
            let scene = three(policy).await;
            let process = scene.process(0);
            assert_eq!(ready(&process), 4);
            process.freeze(false);
            scene.run(45.0).await;
            // `thaw` itself tries before anything else of the process has run
            process.thaw(true);
            let thawed = forebay::Instant::now();
            let first = process.pool.get().await.expect("a new one, in time");
            assert!(first.opened_at > thawed, "{policy:?}");
            scene.run(1.0).await;
        });
    }
}

/// What `dead_man` comes to: the kernel ends a process that has not fenced in time.
#[test]
fn c_a_stopped_process_that_the_kernel_kills_in_time_exceeds_nothing() {
    block_on(async {
        let scene = three(OnLoss::Share).await;
        let renewed = scene.renewed(0);
        scene.process(0).freeze(false);
        let most = LIMIT as usize;
        scene.watch(renewed + 27.5 - scene.time(), |scene| assert!(scene.open() <= most)).await;
        scene.process(0).die(&scene.backend);
        let back = renewed + 30.0 + 10.0 - scene.time();
        scene.watch(back, |scene| assert!(scene.open() <= most)).await;
        assert_eq!([1, 2].map(|i| scene.open_by(i)), [6, 6]);
    });
}

#[test]
fn d_a_killed_processs_slots_are_back_within_ttl_and_a_heartbeat() {
    for policy in POLICIES {
        block_on(async {
            let scene = three(policy).await;
            scene.process(0).die(&scene.backend);
            let most = LIMIT as usize;
            scene.watch(40.0, |scene| assert!(scene.open() <= most)).await;
            assert_eq!([1, 2].map(|i| scene.open_by(i)), [6, 6], "{policy:?}");
            assert_eq!(scene.ledger().members.len(), 2);
        });
    }
}

#[test]
fn e_a_cut_in_one_direction_or_both_leaves_what_the_policy_leaves() {
    for policy in POLICIES {
        for (up, down) in [(true, false), (false, true), (true, true)] {
            block_on(async {
                let scene = three(policy).await;
                let process = scene.process(0);
                let used = process.pool.get().await.expect("ready");
                scene.cut(0, up, down);
                let (most, mut above) = (LIMIT as usize, 0);
                let keeps = if policy == OnLoss::Fence { 0 } else { 4 };
                scene
                    .watch(90.0, |scene| {
                        assert!(scene.open() <= most + keeps, "{policy:?} {up} {down}");
                        above = above.max(scene.open());
                    })
                    .await;
                assert_eq!(scene.link(0), Link::Lapsed);
                assert_eq!(scene.open_by(0), keeps, "{policy:?} {up} {down}");
                // as long as it is still heard, its leases are its own
                let exceeds = up && policy != OnLoss::Fence;
                assert_eq!(above > most, exceeds, "{policy:?} {up} {down}: {above}");
                drop(used);
                scene.cut(0, false, false);
                scene.run(60.0).await;
                assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [4, 4, 4], "{policy:?}");
                let sum: u32 = scene.ledger().total();
                assert_eq!(sum, LIMIT);
            });
        }
    }
}

#[test]
fn f_while_the_keeper_is_away_a_share_that_fits_is_kept_and_the_limit_too() {
    for seconds in [15.0, 28.0, 32.0, 100.0] {
        block_on(async {
            let scene = three(OnLoss::Share).await;
            let before = scene.backend.connects();
            scene.outage(true);
            scene.watch(seconds, |scene| assert!(scene.open() <= LIMIT as usize)).await;
            scene.outage(false);
            scene.watch(70.0, |scene| assert!(scene.open() <= LIMIT as usize)).await;
            assert_eq!(scene.backend.connects(), before, "{seconds} s: something was closed");
            assert_eq!([0, 1, 2].map(|i| scene.reaped(i)), [0, 0, 0], "{seconds} s");
        });
    }
}

#[test]
fn f_a_member_below_its_share_grows_to_it_while_the_keeper_is_away() {
    block_on(async {
        let scene = three(OnLoss::Share).await;
        // two new ones with nothing yet, when the keeper goes
        let late = scene.start(3);
        scene.run(25.0).await;
        assert_eq!(scene.ledger().total(), LIMIT);
        let busy: Vec<_> = [0, 1, 2].map(|i| scene.process(i)).into();
        drop(busy);
        scene.outage(true);
        scene.watch(29.0, |scene| assert!(scene.open() <= LIMIT as usize)).await;
        scene.watch(60.0, |scene| assert!(scene.open() <= LIMIT as usize)).await;
        assert_eq!([0, 1, 2, late].map(|i| scene.open_by(i)), [3, 3, 3, 3]);
    });
}

#[test]
fn f_after_a_restart_totals_are_exact_one_ttl_later() {
    for restart in [Restart::WithData, Restart::WithoutData, Restart::Stale] {
        for policy in POLICIES {
            block_on(async {
                let scene = three(policy).await;
                scene.clone().act(Act::Snapshot);
                // after the snapshot a member leaves and another comes
                assert!(scene.process(2).leave(Duration::from_secs(10)).await);
                scene.start(3);
                scene.run(30.0).await;
                let most = LIMIT as usize;
                let connects = scene.backend.connects();
                scene.outage(true);
                scene.watch(10.0, |scene| assert!(scene.open() <= most)).await;
                scene.clone().act(Act::Restart(restart));
                scene.outage(false);
                scene.watch(45.0, |scene| assert!(scene.open() <= most)).await;
                let ledger = scene.ledger();
                assert_eq!(ledger.total(), LIMIT, "{policy:?} {restart:?}");
                assert_eq!(ledger.members.len(), 3, "{policy:?} {restart:?}");
                assert_eq!([0, 1, 3].map(|i| scene.open_by(i)), [4, 4, 4]);
                assert_eq!(scene.backend.connects(), connects, "{policy:?} {restart:?}: closed");
            });
        }
    }
}

#[test]
fn g_the_rate_is_kept_through_stalls_stops_and_restarts() {
    block_on(async {
        let limits = BackendLimits::new(60, 5, 2);
        let scene = Scene::new(Plan::still(3, OnLoss::Fence, limits)).await;
        scene.run(1.0).await;
        // the judge looks at every window of arrivals
        for round in 0..3_u64 {
            let lasts = Duration::from_secs(1);
            scene.clone().act(Act::Credentials { take: Duration::from_millis(700), lasts });
            scene.run(1.2).await;
            scene.process(round as usize).freeze(false);
            scene.run(2.0 + round as f64).await;
            scene.process(round as usize).thaw(false);
            scene.run(2.0).await;
            scene.clone().act(Act::Restart(Restart::WithoutData));
            scene.run(2.0).await;
        }
        scene.run(60.0).await;
        assert_eq!(scene.open(), 60);
    });
}
