//! The launcher's side of a rendezvous, without I/O: whoever owns the connections gives it what ranks
//! say and how they end, and sends what it returns.
//!
//! ```text
//!                 Hello              Leave
//!   Silent ─────────1────▶ Joined ─────2────▶ Left
//!     │                      │                 │
//!     │   a broken rule, or the connection closed without Leave (3)
//!     ├──────────────────────┴──▶ Expelled     │
//!     │                              │         │
//!     └──────────────4───────────────┴─────────┴──▶ Ended   its process is no more
//! ```
//! 1 and 2 are [`Hub::handle`], 3 is [`Hub::expel`], 4 is [`Hub::end`]. Barriers and values wait for
//! ranks that are `Silent` or `Joined`, and for no others. Whoever joins late is told what happened
//! before.
//!
//! # Bounds
//! A rank puts at most [`KEYS_MAX`] values and has at most [`GETS_MAX`] questions open; then it is
//! expelled. What it does not fetch is its connection's to bound: see [`Hub::backlog_max`].

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    Ending, Event, Identity, Membership, Rank,
    wire::{MISSING_MAX, Reply, Request, VERSION},
};

/// The most values that one rank puts.
pub const KEYS_MAX: usize = 256;
/// The most questions of one rank that have no answer yet.
pub const GETS_MAX: usize = 256;

/// A frame for a rank: the same bytes for all that get them.
pub type SharedFrame = Arc<[u8]>;

/// The launcher's side of a rendezvous.
#[derive(Debug)]
pub struct Hub {
    identity: Identity,
    members: Vec<Member>,
    /// What happened so far, for those who join late. At most three for each rank.
    events: Vec<Event>,
    /// By key: who asks for it, and whose value it wants.
    questions: BTreeMap<String, BTreeSet<(Rank, Option<Rank>)>>,
    transmissions: VecDeque<(Rank, SharedFrame)>,
}

#[derive(Debug)]
struct Member {
    state: State,
    /// It has greeted.
    has_joined: bool,
    /// It is gone, or given up, without having left.
    is_lost: bool,
    /// The last barrier that it has come to, and the last that it was let through.
    entered: u32,
    passed: u32,
    /// What it has put, as the frames that tell of it.
    values: BTreeMap<String, SharedFrame>,
    open_gets: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Silent,
    Joined,
    Left,
    Expelled,
    Ended,
}

impl State {
    /// Whether others still wait for this rank.
    const fn is_awaited(self) -> bool {
        matches!(self, Self::Silent | Self::Joined)
    }
}

impl Hub {
    /// Returns a rendezvous of `size` ranks.
    #[must_use]
    pub fn new(size: u32, identity: Identity) -> Self {
        let member = |_| Member {
            state: State::Silent,
            has_joined: false,
            is_lost: false,
            entered: 0,
            passed: 0,
            values: BTreeMap::new(),
            open_gets: 0,
        };
        Self {
            identity,
            members: (0..size).map(member).collect(),
            events: Vec::new(),
            questions: BTreeMap::new(),
            transmissions: VecDeque::new(),
        }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// Returns how many frames may wait for one rank that does not fetch them, before it is to be
    /// [expelled](Self::expel).
    #[must_use]
    pub const fn backlog_max(&self) -> usize {
        16 * (self.members.len() + 64)
    }

    /// Carries out what `rank` said. A rank that breaks a rule is expelled; nobody else notices more
    /// than that.
    pub fn handle(&mut self, rank: Rank, request: Request) {
        if let Err(why) = self.try_handle(rank, request) {
            self.expel(rank, why);
        }
    }

    /// Cuts `rank` off: it broke a rule, or its connection is closed while its process lives. The last
    /// frame for it says `why`.
    pub fn expel(&mut self, rank: Rank, why: &str) {
        let Some(member) = self.member(rank) else { return };
        if !member.state.is_awaited() {
            return;
        }
        (member.state, member.is_lost) = (State::Expelled, true);
        let frame = Reply::Expelled { why: why.to_owned() }.encode();
        self.transmissions.push_back((rank, frame.into()));
        self.depart(rank, Event::Expelled { rank });
    }

    /// Takes note that the process of `rank` has ended, after all that it said was handled.
    pub fn end(&mut self, rank: Rank, ending: Ending) {
        let Some(member) = self.member(rank) else { return };
        let before = member.state;
        member.state = State::Ended;
        member.is_lost |= before.is_awaited();
        let event = Event::Ended { rank, ending };
        match before {
            State::Silent | State::Joined => self.depart(rank, event),
            State::Left | State::Expelled => self.tell(rank, event),
            State::Ended => {}
        }
    }

    /// Returns whether `rank` may say something, and is to be read from.
    #[must_use]
    pub fn is_heard(&self, rank: Rank) -> bool {
        self.member_ref(rank).is_some_and(|member| member.state.is_awaited())
    }

    /// Returns the ranks that have not said anything yet.
    #[must_use]
    pub fn missing(&self) -> Vec<Rank> {
        self.ranks_that(|member| member.state == State::Silent)
    }

    /// Returns the ranks that had joined and are gone without having left.
    #[must_use]
    pub fn lost(&self) -> Vec<Rank> {
        self.ranks_that(|member| member.is_lost && member.has_joined)
    }

    /// Returns the ranks that are gone, or given up, without having joined.
    #[must_use]
    pub fn never_joined(&self) -> Vec<Rank> {
        self.ranks_that(|member| member.is_lost && !member.has_joined)
    }

    fn ranks_that(&self, is_meant: impl Fn(&Member) -> bool) -> Vec<Rank> {
        let ranks = (0..).map(Rank).zip(&self.members);
        ranks.filter(|(_, member)| is_meant(member)).map(|(rank, _)| rank).collect()
    }

    /// Returns whether nobody is there any more, or will be.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.members.iter().any(|member| member.state.is_awaited())
    }

    /// Ends the rendezvous for all, since some have not arrived in time: each of the others is told which.
    pub fn dissolve(&mut self) {
        let missing = self.missing();
        let count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
        let ranks = missing.into_iter().take(MISSING_MAX).collect();
        let frame: SharedFrame = Reply::Missing { count, ranks }.encode().into();
        for rank in (0..self.size()).map(Rank) {
            self.send(rank, &frame);
        }
        for member in self.members.iter_mut().filter(|member| member.state.is_awaited()) {
            member.is_lost = member.state == State::Silent;
            member.state = State::Expelled;
        }
    }

    /// Returns the next frame to send, and to whom.
    pub fn poll_transmit(&mut self) -> Option<(Rank, SharedFrame)> {
        self.transmissions.pop_front()
    }

    fn member(&mut self, rank: Rank) -> Option<&mut Member> {
        self.members.get_mut(rank.index())
    }

    fn member_ref(&self, rank: Rank) -> Option<&Member> {
        self.members.get(rank.index())
    }

    fn try_handle(&mut self, rank: Rank, request: Request) -> Result<(), &'static str> {
        let Some(member) = self.member(rank) else { return Ok(()) };
        match (member.state, request) {
            (State::Silent, Request::Hello { version: VERSION }) => self.join(rank),
            (State::Silent, Request::Hello { .. }) => {
                return Err("another version of the protocol");
            }
            (State::Silent, _) => return Err("the first message must be a greeting"),
            (State::Joined, Request::Hello { .. }) => return Err("a second greeting"),
            (State::Joined, Request::Put { key, value }) => return self.put(rank, key, value),
            (State::Joined, Request::Get { rank: whose, key }) => {
                return self.get(rank, whose, key);
            }
            (State::Joined, Request::Enter { round }) => {
                if member.entered != member.passed || member.entered.checked_add(1) != Some(round) {
                    return Err("a barrier out of order");
                }
                member.entered = round;
                self.let_through();
            }
            (State::Joined, Request::Leave) => {
                member.state = State::Left;
                self.depart(rank, Event::Left { rank });
            }
            // What was on its way when the rank left or was cut off.
            (State::Left | State::Expelled | State::Ended, _) => {}
        }
        Ok(())
    }

    fn join(&mut self, rank: Rank) {
        let size = self.size();
        if let Some(member) = self.member(rank) {
            (member.state, member.has_joined) = (State::Joined, true);
        }
        let welcome = Membership { rank, size, identity: self.identity.clone() };
        self.send(rank, &Reply::Welcome(welcome).encode().into());
        for event in self.events.clone() {
            self.send(rank, &Reply::Event(event).encode().into());
        }
    }

    fn put(&mut self, rank: Rank, key: String, value: Vec<u8>) -> Result<(), &'static str> {
        let Some(member) = self.member(rank) else { return Ok(()) };
        if member.values.contains_key(&key) {
            return Err("a key was put twice");
        }
        if member.values.len() >= KEYS_MAX {
            return Err("too many keys");
        }
        let frame: SharedFrame = Reply::Value { rank, key: key.clone(), value }.encode().into();
        member.values.insert(key.clone(), Arc::clone(&frame));
        self.answer(rank, &key, &frame);
        Ok(())
    }

    fn get(&mut self, rank: Rank, whose: Option<Rank>, key: String) -> Result<(), &'static str> {
        let size = self.size();
        if whose.is_some_and(|whose| whose.0 >= size) {
            return Err("a question for a rank that does not exist");
        }
        let mut is_open = false;
        for owner in whose.map_or(0..size, |whose| whose.0..whose.0 + 1).map(Rank) {
            let Some(member) = self.member_ref(owner) else { continue };
            match member.values.get(&key) {
                Some(frame) => {
                    let frame = Arc::clone(frame);
                    self.send(rank, &frame);
                }
                None if member.state.is_awaited() => is_open = true,
                None => {
                    let frame = Reply::Absent { rank: owner, key: key.clone() }.encode().into();
                    self.send(rank, &frame);
                }
            }
        }
        if is_open && self.questions.entry(key).or_default().insert((rank, whose)) {
            let Some(member) = self.member(rank) else { return Ok(()) };
            member.open_gets += 1;
            if member.open_gets > GETS_MAX {
                return Err("too many open questions");
            }
        }
        Ok(())
    }

    /// Sends the answer of `owner` for `key` to all who asked for it.
    fn answer(&mut self, owner: Rank, key: &str, frame: &SharedFrame) {
        let Some(asking) = self.questions.get(key) else { return };
        let matching = |&&(_, whose): &&(Rank, Option<Rank>)| whose.is_none_or(|one| one == owner);
        // A rank that asked for this one and for all is told once.
        let told: BTreeSet<Rank> = asking.iter().filter(matching).map(|&(rank, _)| rank).collect();
        for rank in told {
            self.send(rank, frame);
        }
        self.close_questions(key);
    }

    /// Forgets the questions for `key` that have all their answers.
    fn close_questions(&mut self, key: &str) {
        let Some(asking) = self.questions.get_mut(key) else { return };
        let members = &mut self.members;
        let is_missing =
            |member: &Member| member.state.is_awaited() && !member.values.contains_key(key);
        let is_missing_somewhere = members.iter().any(is_missing);
        asking.retain(|&(rank, whose)| {
            let is_open = match whose {
                Some(whose) => members.get(whose.index()).is_some_and(is_missing),
                None => is_missing_somewhere,
            };
            if !is_open && let Some(member) = members.get_mut(rank.index()) {
                member.open_gets = member.open_gets.saturating_sub(1);
            }
            is_open
        });
        if asking.is_empty() {
            self.questions.remove(key);
        }
    }

    /// Tells of `event`, after which nobody waits for `rank`.
    fn depart(&mut self, rank: Rank, event: Event) {
        self.tell(rank, event);
        for key in self.questions.keys().cloned().collect::<Vec<_>>() {
            // Its own questions are nobody's any more.
            if let Some(asking) = self.questions.get_mut(&key) {
                asking.retain(|&(asker, _)| asker != rank);
            }
            if self.member_ref(rank).is_some_and(|member| member.values.contains_key(&key)) {
                self.close_questions(&key);
            } else {
                let absent = Reply::Absent { rank, key: key.clone() }.encode().into();
                self.answer(rank, &key, &absent);
            }
        }
        self.let_through();
    }

    fn tell(&mut self, rank: Rank, event: Event) {
        self.events.push(event);
        let frame: SharedFrame = Reply::Event(event).encode().into();
        for other in (0..self.size()).map(Rank).filter(|&other| other != rank) {
            self.send(other, &frame);
        }
    }

    /// Lets all pass the barrier for which nobody is missing any more.
    fn let_through(&mut self) {
        let awaited = || self.members.iter().filter(|member| member.state.is_awaited());
        let Some(round) = awaited().map(|member| member.entered).min() else { return };
        if round == 0 || awaited().all(|member| member.passed >= round) {
            return;
        }
        let frame: SharedFrame = Reply::Passed { round }.encode().into();
        for rank in (0..self.size()).map(Rank) {
            let Some(member) = self.member(rank) else { continue };
            if member.state.is_awaited() && member.passed < round {
                member.passed = round;
                self.send(rank, &frame);
            }
        }
    }

    /// Sends to a rank that listens.
    fn send(&mut self, rank: Rank, frame: &SharedFrame) {
        if self.member_ref(rank).is_some_and(|member| member.state == State::Joined) {
            self.transmissions.push_back((rank, Arc::clone(frame)));
        }
    }
}

#[cfg(test)]
mod tests;
