//! The rest of the protocol, rule by rule: fairness, changing limits, refusals,
//! reserves, leaving, and what a member may do that never reached the keeper.

use std::time::Duration;

use forebay::{BudgetError, RateBudget};
use forebay_fleet::{BackendLimits, Link, OnLoss};

use crate::block_on;
use crate::plan::Plan;
use crate::process::BACKEND;
use crate::scene::Scene;

fn limits(open: u32) -> BackendLimits {
    BackendLimits::new(open, 100, 100)
}

fn set(scene: &Scene, index: usize, limits: BackendLimits) {
    let process = scene.process(index);
    let member = process.member.lock();
    member.as_ref().expect("a member").set_limits(BACKEND, limits).expect("limits that work");
}

#[test]
fn a_lowered_limit_is_kept_within_two_heartbeats_and_by_those_in_use_as_they_return() {
    block_on(async {
        let scene = Scene::new(Plan::still(3, OnLoss::Share, limits(12))).await;
        scene.run(25.0).await;
        let process = scene.process(0);
        let mut used = Vec::new();
        for _ in 0..4 {
            used.push(process.pool.get().await.expect("ready"));
        }
        let lower = BackendLimits { version: 1, ..limits(6) };
        (0..3).for_each(|i| set(&scene, i, lower));
        scene.run(20.0).await;
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [4, 2, 2], "idle ones have gone");
        used.truncate(1);
        scene.run(20.0).await;
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [2, 2, 2]);
        assert_eq!(scene.ledger().total(), 6);
    });
}

#[test]
fn a_rolling_change_of_the_limit_does_not_flap() {
    block_on(async {
        let scene = Scene::new(Plan::still(3, OnLoss::Share, limits(12))).await;
        scene.run(25.0).await;
        let raised = BackendLimits { version: 1, ..limits(15) };
        let mut seen = vec![scene.ledger().limits().0.open];
        for i in 0..3 {
            set(&scene, i, raised);
            scene
                .watch(15.0, |scene| {
                    let limit = scene.ledger().limits().0.open;
                    if seen.last() != Some(&limit) {
                        seen.push(limit);
                    }
                })
                .await;
        }
        assert_eq!(seen, [12, 15]);
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [5, 5, 5]);
    });
}

#[test]
fn of_limits_with_one_version_the_lowest_counts_and_all_are_told_whose_it_is() {
    block_on(async {
        let scene = Scene::new(Plan::still(3, OnLoss::Share, limits(12))).await;
        scene.run(25.0).await;
        set(&scene, 1, limits(9));
        scene.run(25.0).await;
        assert_eq!(scene.open(), 9);
        let (counts, by) = scene.ledger().limits();
        assert_eq!((counts.open, by.split('@').next()), (9, Some("m1")));
        assert!((0..3).all(|i| scene.process(i).state().expect("a member").limit == 9));
    });
}

#[test]
fn what_is_reserved_for_outsiders_is_left_to_them() {
    block_on(async {
        let reserved = BackendLimits { reserve: 3, rate_reserve: 60, ..limits(12) };
        let scene = Scene::new(Plan::still(3, OnLoss::Share, reserved)).await;
        scene.watch(60.0, |scene| assert!(scene.open() <= 9)).await;
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [3, 3, 3]);
        assert_eq!(scene.ledger().limits().0.rate, 40);
    });
}

#[test]
fn a_refusal_by_count_stops_new_grants_for_everybody() {
    block_on(async {
        let scene = Scene::new(Plan::still(2, OnLoss::Share, limits(12))).await;
        scene.run(25.0).await;
        set(&scene, 0, BackendLimits { version: 1, ..limits(20) });
        scene.backend.manners(|manners| manners.too_many = 1000);
        let refused = scene.backend.connects();
        while scene.ledger().paused_until_ms == 0 {
            scene.run(0.1).await;
        }
        assert!(scene.backend.connects() > refused);
        scene.backend.manners(|manners| manners.too_many = 0);
        set(&scene, 1, BackendLimits { version: 2, ..limits(40) });
        let booked = scene.ledger().total();
        let mut paused = 0;
        scene
            .watch(30.0, |scene| {
                let ledger = scene.ledger();
                if ledger.last_ms < ledger.paused_until_ms {
                    paused += 1;
                    assert!(ledger.total() <= booked.max(20), "granted during the pause");
                }
            })
            .await;
        assert!(paused > 10, "the pause was too short to see");
        assert_eq!(scene.open(), 32, "both have all they can use");
    });
}

#[test]
fn a_refusal_by_rate_halves_the_pace_of_every_member() {
    block_on(async {
        let scene = Scene::new(Plan::still(2, OnLoss::Share, BackendLimits::new(400, 10, 1))).await;
        scene.run(5.0).await;
        let pace = async |scene: &Scene| {
            let before = scene.backend.connects();
            scene.run(4.0).await;
            scene.backend.connects() - before
        };
        let full = pace(&scene).await;
        assert!((36..=40).contains(&full), "{full} in 4 s");
        RateBudget::refused(&*scene.process(0).rate, forebay::Instant::now());
        scene.run(3.0).await;
        let (one, before) = (scene.open_by(1), scene.open_by(0));
        let half = pace(&scene).await;
        assert!((16..=20).contains(&half), "{half} in 4 s after the refusal");
        assert!(scene.open_by(1) > one && scene.open_by(0) > before, "both go on");
        scene.run(12.0).await;
        assert!(pace(&scene).await >= 36, "and back");
    });
}

#[test]
fn a_permit_that_would_take_too_long_is_an_error_that_says_so() {
    block_on(async {
        let mut plan = Plan::still(1, OnLoss::Share, BackendLimits::new(400, 1, 1));
        plan.recipes[0].settings.max_wait = Duration::from_secs(5);
        plan.recipes[0].target_ready = 0;
        let scene = Scene::new(plan).await;
        scene.run(15.0).await;
        let process = scene.process(0);
        let asks = (0..20).map(|_| {
            let rate = process.rate.clone();
            tokio::spawn(async move { rate.reserve(forebay::Instant::now(), 0).await })
        });
        let (mut good, mut late) = (0, 0);
        for ask in asks.collect::<Vec<_>>() {
            match ask.await.expect("no panic") {
                Ok(_) => good += 1,
                Err(BudgetError::WaitTooLong { most, .. }) => {
                    assert_eq!(most, Duration::from_secs(5));
                    late += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!((5..=9).contains(&good), "{good} within 5 s and what is fetched ahead");
        assert_eq!(good + late, 20);
    });
}

#[test]
fn a_member_that_never_reached_the_keeper_opens_its_cold_share_and_no_more() {
    for cold_share in [0, 3] {
        block_on(async {
            let mut plan = Plan::still(1, OnLoss::Share, limits(12));
            plan.recipes[2].settings.cold_share = cold_share;
            let scene = Scene::new(plan).await;
            scene.outage(true);
            let late = scene.start(2);
            scene.outage(true);
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!((scene.link(late), scene.open_by(late)), (Link::Never, cold_share as usize));
        });
    }
}

#[test]
fn the_leases_of_a_vanished_member_stay_booked_for_reclaim_after() {
    block_on(async {
        let mut plan = Plan::still(3, OnLoss::Share, limits(12));
        plan.reclaim = Duration::from_secs(120);
        plan.recipes.iter_mut().for_each(|r| r.settings.reclaim_after = plan.reclaim);
        let scene = Scene::new(plan).await;
        scene.run(25.0).await;
        let renewed = scene.renewed(0);
        scene.process(0).freeze(false);
        let left = renewed + 119.0 - scene.time();
        // nobody exceeds anything although a process is stopped far longer than ttl
        scene.watch(left, |scene| assert_eq!(scene.open(), 12)).await;
        scene.run(12.0).await;
        assert_eq!([1, 2].map(|i| scene.open_by(i)), [6, 6]);
        scene.process(0).thaw(true);
        scene.run(60.0).await;
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [4, 4, 4]);
    });
}

#[test]
fn leaving_gives_everything_back_at_once_whatever_is_under_way() {
    for delay in 0..40 {
        block_on(async {
            let scene = Scene::new(Plan::still(3, OnLoss::Share, limits(12))).await;
            scene.run(25.0).await;
            let process = scene.process(0);
            let used = process.pool.get().await.expect("ready");
            // the last one comes back while a report is on its way
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(5 * delay)).await;
                drop(used);
            });
            assert!(process.leave(Duration::from_secs(20)).await, "after {delay}");
            assert_eq!(scene.ledger().members.len(), 2, "after {delay}");
            scene.run(2.0).await;
            assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [0, 6, 6], "after {delay}");
        });
    }
}

#[test]
fn a_member_that_is_dropped_closes_what_its_pools_have() {
    block_on(async {
        let scene = Scene::new(Plan::still(3, OnLoss::Share, limits(12))).await;
        scene.run(25.0).await;
        let process = scene.process(0);
        let used = process.pool.get().await.expect("ready");
        drop(process.member.lock().take());
        scene.run(2.0).await;
        assert_eq!(scene.open_by(0), 0);
        assert!(process.pool.try_get().is_err());
        drop(used);
        scene.watch(40.0, |scene| assert!(scene.open() <= 12)).await;
        assert_eq!([1, 2].map(|i| scene.open_by(i)), [6, 6]);
    });
}

#[test]
fn with_more_askers_than_slots_everybody_has_its_turn() {
    for announces in [true, false] {
        block_on(async {
            let mut plan = Plan::still(5, OnLoss::Share, limits(2));
            for recipe in &mut plan.recipes {
                (recipe.clients, recipe.target_ready) = (3, 0);
                (recipe.hold, recipe.think) = (Duration::from_millis(300), Duration::ZERO);
                recipe.announces = announces;
            }
            let scene = Scene::new(plan).await;
            scene.run(60.0).await;
            for round in 0..3 {
                let before = [0, 1, 2, 3, 4].map(|i| *scene.process(i).served.lock());
                scene.watch(60.0, |scene| assert!(scene.open() <= 2)).await;
                let after = [0, 1, 2, 3, 4].map(|i| *scene.process(i).served.lock());
                let served = std::array::from_fn::<_, 5, _>(|i| after[i] - before[i]);
                assert!(served.iter().all(|n| *n > 0), "round {round}: {served:?} {announces}");
            }
        });
    }
}

#[test]
fn weights_divide_the_limit() {
    block_on(async {
        let mut plan = Plan::still(3, OnLoss::Share, limits(12));
        for (recipe, weight) in plan.recipes.iter_mut().zip([1, 2, 3, 1, 1]) {
            recipe.settings.weight = weight;
        }
        let scene = Scene::new(plan).await;
        scene.run(40.0).await;
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [2, 4, 6]);
        let shares = [0, 1, 2].map(|i| scene.process(i).state().expect("a member").share);
        assert_eq!(shares, [2, 4, 4], "weighted, and at most an equal part");
    });
}

#[test]
fn a_blocked_application_does_not_keep_the_fence_from_falling() {
    block_on(async {
        let scene = Scene::new(Plan::still(3, OnLoss::Fence, limits(12))).await;
        scene.run(25.0).await;
        let process = scene.process(0);
        let used = process.pool.get().await.expect("ready");
        process.block(true);
        scene.cut(0, true, true);
        scene.watch(60.0, |scene| assert!(scene.open() <= 12)).await;
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [0, 6, 6]);
        drop(used);
        process.block(false);
        scene.cut(0, false, false);
        scene.run(40.0).await;
        assert_eq!([0, 1, 2].map(|i| scene.open_by(i)), [4, 4, 4]);
    });
}

#[test]
fn a_connect_that_hangs_is_given_up_by_ttl() {
    block_on(async {
        let mut plan = Plan::still(1, OnLoss::Fence, limits(4));
        plan.recipes.iter_mut().for_each(|r| r.connect_timeout = Duration::from_secs(600));
        let scene = Scene::new(plan).await;
        scene.backend.manners(|manners| manners.hangs = 1000);
        scene.run(25.0).await;
        assert!(scene.open_by(0) > 0, "connects are under way");
        scene.cut(0, true, true);
        // the judge wants nothing left from ttl on
        scene.run(60.0).await;
        assert_eq!(scene.open_by(0), 0);
    });
}
