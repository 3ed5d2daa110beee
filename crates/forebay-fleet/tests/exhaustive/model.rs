//! How far the model is explored, what can happen next, and what must hold.

use forebay_fleet::{Ledger, Limits, Moment, Profile};
use stateright::{Model, Property};

use super::member::{Body, Member};
use super::world::{Books, Fate, Step, World};

/// Leases are good for three ticks of the keeper's clock. The margin is two, so
/// that members stop after one and kill after two.
pub(crate) const TTL: u8 = 3;
const MARGIN: u8 = 2;
pub(crate) const SOFT: u8 = TTL - MARGIN;
pub(crate) const HARD: u8 = TTL - MARGIN / 2;
/// A member that has slept asks for this long before it kills; also the least
/// time after which a report counts as lost.
pub(crate) const DOUBT: u8 = 1;

/// A mistake made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Plant {
    None,
    /// Members go on although nobody answers.
    NoFence,
    /// A lease is free when the connection is closed here, not when the backend has let go.
    ReleaseAtClose,
    /// Reports say what has changed, and every one that arrives is booked.
    Relative,
    /// The leases of the dead are never taken back.
    NoReap,
    /// A member that was reaped keeps its connections under its new name, and the
    /// keeper believes it.
    Redeclare,
}

/// How far the model is explored.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) plant: Plant,
    pub(crate) members: usize,
    pub(crate) limit: u8,
    /// Ticks of the keeper's clock.
    pub(crate) horizon: u8,
    /// A member's clock may lose, or make up, so many ticks.
    pub(crate) drift: u8,
    /// So many members have such a clock, and such a network, and die or stop; the
    /// others are well.
    pub(crate) shaky: usize,
    /// How often, in all: a report takes its time, arrives again later, a member
    /// dies, stops, the keeper loses its books. Reports and answers are lost at will.
    pub(crate) slow: u8,
    pub(crate) doubles: u8,
    pub(crate) crashes: u8,
    pub(crate) freezes: u8,
    pub(crate) losses: u8,
    /// Also asks of every state whether a world without further faults mends it.
    pub(crate) mends: bool,
}

impl Fleet {
    /// A small fleet and no faults but those of the network.
    pub(crate) fn new(members: usize, limit: u8, horizon: u8) -> Self {
        Self {
            plant: Plant::None,
            members,
            limit,
            horizon,
            drift: 1,
            shaky: 1,
            slow: 0,
            doubles: 0,
            crashes: 0,
            freezes: 0,
            losses: 0,
            mends: false,
        }
    }
}

impl Model for Fleet {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let moment = Moment { now_ms: 0, run_id: "run-0", by_time: true };
        let mut world = World {
            now: 0,
            books: Some(Books::new(Ledger::ready(0, moment))),
            members: vec![Member::new(); self.members],
            network: vec![Vec::new(); self.members],
            run: 0,
            slow: 0,
            doubles: 0,
            crashes: 0,
            freezes: 0,
        };
        for i in 0..self.members {
            world.work(self, i);
        }
        world.take(self, Step::Tick(vec![0; self.members]));
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < self.horizon {
            self.ticks(steps);
        }
        for (i, member) in world.members.iter().enumerate() {
            for &message in &world.network[i] {
                steps.push(Step::Deliver { member: i, message });
            }
            if member.closing > 0 {
                steps.push(Step::LetGo(i));
            }
            match member.body {
                Body::Dead => steps.push(Step::Boot(i)),
                Body::Frozen => steps.push(Step::Thaw(i)),
                Body::Runs => self.actions_of(i, member, world, steps),
            }
        }
        if world.run < self.losses && world.books.is_some() {
            steps.push(Step::LoseBooks);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(self, step);
        next.forget();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("the ledger keeps the limit", |fleet: &Self, world: &World| {
                world.ledger().is_none_or(|ledger| ledger.total() <= u32::from(fleet.limit))
            }),
            Property::always("the backend keeps the limit", |fleet: &Self, world: &World| {
                let excused = world.members.iter().filter(|member| member.overslept());
                let excused: u8 = excused.map(Member::at_backend).sum();
                world.at_backend() <= fleet.limit + excused
            }),
            Property::always("what is used is booked", |_: &Self, world: &World| world.covered()),
            Property::sometimes("all leases are used", |fleet: &Self, world: &World| {
                world.at_backend() == fleet.limit
            }),
            Property::sometimes("a member is reaped", |_: &Self, world: &World| {
                world.crashes == 0 && world.members.iter().any(|member| member.life > 1)
            }),
            Property::sometimes("a member kills its connections", |_: &Self, world: &World| {
                world.members.iter().any(|member| member.killed)
            }),
        ];
        if self.mends {
            properties
                .push(Property::always("every slot comes back", |fleet: &Self, world: &World| {
                    world.mended(fleet)
                }));
        }
        properties
    }
}

impl Fleet {
    /// Every way the members' clocks may advance while the keeper's does.
    fn ticks(&self, steps: &mut Vec<Step>) {
        let mut ways = vec![Vec::new()];
        for i in 0..self.members {
            let drift = if i < self.shaky { self.drift } else { 0 };
            let with = |way: &Vec<u8>, behind| [&way[..], &[behind]].concat();
            ways = ways
                .iter()
                .flat_map(|way| (0..=drift).map(move |behind| with(way, behind)))
                .collect();
        }
        steps.extend(ways.into_iter().map(Step::Tick));
    }

    fn actions_of(&self, i: usize, member: &Member, world: &World, steps: &mut Vec<Step>) {
        if member.may_open(self.plant) {
            steps.push(Step::Open(i));
        }
        if member.open > 0 {
            steps.push(Step::Close(i));
        }
        match member.call {
            None if member.reported == Some(member.clock) => {}
            None => {
                let mut fates = vec![Fate::Answered];
                if i < self.shaky {
                    fates.extend([Fate::Unanswered, Fate::Lost]);
                    fates.extend((world.slow < self.slow).then_some(Fate::Slow));
                    fates.extend((world.doubles < self.doubles).then_some(Fate::Doubled));
                }
                for fate in fates {
                    steps.push(Step::Report { member: i, ask: true, fate });
                    if member.seq > 0 && (member.taken(self.plant), member.booked) != (0, 0) {
                        steps.push(Step::Report { member: i, ask: false, fate });
                    }
                }
            }
            Some(call) => {
                if call.answer.is_some() {
                    steps.push(Step::Hear(i));
                }
            }
        }
        if i < self.shaky && world.crashes < self.crashes {
            steps.push(Step::Crash(i));
        }
        if i < self.shaky && world.freezes < self.freezes && member.open > 0 {
            steps.push(Step::Freeze(i));
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        Profile {
            service: String::new(),
            peer: String::new(),
            weight: 1,
            limits: Limits { open: u32::from(self.limit), rate: 0, burst: 0, version: 0 },
            ttl_ms: u64::from(TTL),
            heartbeat_ms: 1,
            margin_ms: u64::from(MARGIN),
            reclaim_ms: if self.plant == Plant::NoReap { 1 << 40 } else { TTL.into() },
            // offline shares play no part under `fence`
            divisor: 100,
        }
    }
}
