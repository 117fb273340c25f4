//! The launcher's side of a rendezvous, without I/O: the owner of the connections passes it what ranks send
//! and how they end, and sends what it returns.
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
//! 1 and 2 are [`Hub::handle`], 3 is [`Hub::expel`], 4 is [`Hub::end`]. Barriers and values wait for ranks
//! that are `Silent` or `Joined`, and for no others. A rank that joins late is told what happened before.
//!
//! # Bounds
//! A rank puts at most [`KEYS_MAX`] values and has at most [`GETS_MAX`] open questions; one more, and it is
//! expelled. The owner of a rank's connection bounds the frames that the rank does not fetch: see
//! [`Hub::backlog_max`].

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    Identity, Membership, Rank, RankExit, WorldEvent,
    wire::{HubReply, HubRequest, MISSING_MAX, PAIR_KEYS, PAIR_KEYS_MAX, VERSION},
};
use crate::auth::Secret;

/// The most values that one rank puts.
pub const KEYS_MAX: usize = 256;
/// The most unanswered questions of one rank.
pub const GETS_MAX: usize = 256;

/// A frame for ranks: all receivers share its bytes.
pub type SharedFrame = Arc<[u8]>;

/// The launcher's side of a rendezvous.
#[derive(Debug)]
pub struct Hub {
    identity: Identity,
    /// The secret from which the keys of pairs are derived. No rank learns it.
    pair_master: Option<Secret>,
    members: Vec<MemberRecord>,
    /// The events so far, for ranks that join late. At most three events for each rank.
    events: Vec<WorldEvent>,
    /// For each key, the ranks that ask for it and whose value each wants.
    questions: BTreeMap<String, BTreeSet<(Rank, Option<Rank>)>>,
    transmissions: VecDeque<(Rank, SharedFrame)>,
}

#[derive(Debug)]
struct MemberRecord {
    state: MemberState,
    /// It has greeted.
    has_joined: bool,
    /// It is gone, or was given up, without having left.
    is_lost: bool,
    /// The last barrier that it entered, and the last that it was let through.
    entered: u32,
    passed: u32,
    /// The values that it has put, as the frames that carry them.
    values: BTreeMap<String, SharedFrame>,
    open_gets: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    Silent,
    Joined,
    Left,
    Expelled,
    Ended,
}

impl MemberState {
    /// Returns whether others still wait for this rank.
    const fn is_awaited(self) -> bool {
        matches!(self, Self::Silent | Self::Joined)
    }
}

impl Hub {
    /// Returns a rendezvous of `size` ranks.
    #[must_use]
    pub fn new(size: u32, identity: Identity) -> Self {
        let member = |_| MemberRecord {
            state: MemberState::Silent,
            has_joined: false,
            is_lost: false,
            entered: 0,
            passed: 0,
            values: BTreeMap::new(),
            open_gets: 0,
        };
        Self {
            identity,
            pair_master: None,
            members: (0..size).map(member).collect(),
            events: Vec::new(),
            questions: BTreeMap::new(),
            transmissions: VecDeque::new(),
        }
    }

    /// Gives each two ranks a key that no third rank knows, by which they prove to each other who they are. `master` must be
    /// random, and not be known to any rank. By default there are no such keys.
    #[must_use]
    pub fn pair_keys_from(self, master: Secret) -> Self {
        Self { pair_master: Some(master), ..self }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// Returns how many frames may wait for one rank that does not fetch them, before you should
    /// [expel](Self::expel) it.
    #[must_use]
    pub const fn backlog_max(&self) -> usize {
        16 * (self.members.len() + 64)
    }

    /// Handles a message from `rank`. A rank that breaks a rule is expelled; the others notice nothing else.
    pub fn handle(&mut self, rank: Rank, request: HubRequest) {
        if let Err(why) = self.try_handle(rank, request) {
            self.expel(rank, why);
        }
    }

    /// Cuts `rank` off: it broke a rule, or its connection is closed while its process lives. The last frame
    /// for it says `why`.
    pub fn expel(&mut self, rank: Rank, why: &str) {
        let Some(member) = self.member(rank) else { return };
        if !member.state.is_awaited() {
            return;
        }
        (member.state, member.is_lost) = (MemberState::Expelled, true);
        let frame = HubReply::Expelled { why: why.to_owned() }.encode();
        self.transmissions.push_back((rank, frame.into()));
        self.depart(rank, WorldEvent::Expelled { rank });
    }

    /// Records that the process of `rank` has ended, after everything that it sent was handled.
    pub fn end(&mut self, rank: Rank, ending: RankExit) {
        let Some(member) = self.member(rank) else { return };
        let before = member.state;
        member.state = MemberState::Ended;
        member.is_lost |= before.is_awaited();
        let event = WorldEvent::Ended { rank, ending };
        match before {
            MemberState::Silent | MemberState::Joined => self.depart(rank, event),
            MemberState::Left | MemberState::Expelled => self.tell(rank, event),
            MemberState::Ended => {}
        }
    }

    /// Returns whether `rank` may still send messages, and must be read from.
    #[must_use]
    pub fn is_heard(&self, rank: Rank) -> bool {
        self.member_ref(rank).is_some_and(|member| member.state.is_awaited())
    }

    /// Returns the ranks that have not sent anything yet.
    #[must_use]
    pub fn missing(&self) -> Vec<Rank> {
        self.ranks_that(|member| member.state == MemberState::Silent)
    }

    /// Returns the ranks that had joined and are gone without having left.
    #[must_use]
    pub fn lost(&self) -> Vec<Rank> {
        self.ranks_that(|member| member.is_lost && member.has_joined)
    }

    /// Returns the ranks that are gone, or were given up, without having joined.
    #[must_use]
    pub fn never_joined(&self) -> Vec<Rank> {
        self.ranks_that(|member| member.is_lost && !member.has_joined)
    }

    /// Returns the ranks for which `rank` waits in a barrier, or waited when it ended: none if it was in none.
    #[must_use]
    pub fn awaited_by(&self, rank: Rank) -> Vec<Rank> {
        let Some(waiting) = self.member_ref(rank) else { return Vec::new() };
        let is_inside = waiting.entered > waiting.passed;
        self.ranks_that(|member| {
            is_inside && member.state.is_awaited() && member.entered < waiting.entered
        })
    }

    fn ranks_that(&self, is_meant: impl Fn(&MemberRecord) -> bool) -> Vec<Rank> {
        let ranks = (0..).map(Rank).zip(&self.members);
        ranks.filter(|(_, member)| is_meant(member)).map(|(rank, _)| rank).collect()
    }

    /// Returns whether no rank is left, and none can still join.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.members.iter().any(|member| member.state.is_awaited())
    }

    /// Ends the rendezvous for all, since some ranks have not arrived in time: each of the others is told
    /// which.
    pub fn dissolve(&mut self) {
        let missing = self.missing();
        let count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
        let ranks = missing.into_iter().take(MISSING_MAX).collect();
        let frame: SharedFrame = HubReply::Missing { count, ranks }.encode().into();
        for rank in (0..self.size()).map(Rank) {
            self.send(rank, &frame);
        }
        for member in self.members.iter_mut().filter(|member| member.state.is_awaited()) {
            member.is_lost = member.state == MemberState::Silent;
            member.state = MemberState::Expelled;
        }
    }

    /// Returns the next frame to send, and its receiver.
    pub fn poll_transmit(&mut self) -> Option<(Rank, SharedFrame)> {
        self.transmissions.pop_front()
    }

    fn member(&mut self, rank: Rank) -> Option<&mut MemberRecord> {
        self.members.get_mut(rank.index())
    }

    fn member_ref(&self, rank: Rank) -> Option<&MemberRecord> {
        self.members.get(rank.index())
    }

    fn try_handle(&mut self, rank: Rank, request: HubRequest) -> Result<(), &'static str> {
        let Some(member) = self.member(rank) else { return Ok(()) };
        match (member.state, request) {
            (MemberState::Silent, HubRequest::Hello { version: VERSION }) => self.join(rank),
            (MemberState::Silent, HubRequest::Hello { .. }) => {
                return Err("another version of the protocol");
            }
            (MemberState::Silent, _) => return Err("the first message must be a greeting"),
            (MemberState::Joined, HubRequest::Hello { .. }) => return Err("a second greeting"),
            (MemberState::Joined, HubRequest::Put { key, value }) => {
                return self.put(rank, key, value);
            }
            (MemberState::Joined, HubRequest::Get { rank: owner_rank, key }) => {
                return self.get(rank, owner_rank, key);
            }
            (MemberState::Joined, HubRequest::Enter { round }) => {
                if member.entered != member.passed || member.entered.checked_add(1) != Some(round) {
                    return Err("a barrier out of order");
                }
                member.entered = round;
                self.let_through();
            }
            (MemberState::Joined, HubRequest::Leave) => {
                member.state = MemberState::Left;
                self.depart(rank, WorldEvent::Left { rank });
            }
            // It was under way when the rank left or was cut off.
            (MemberState::Left | MemberState::Expelled | MemberState::Ended, _) => {}
        }
        Ok(())
    }

    fn join(&mut self, rank: Rank) {
        let size = self.size();
        if let Some(member) = self.member(rank) {
            (member.state, member.has_joined) = (MemberState::Joined, true);
        }
        let welcome = Membership { rank, size, identity: self.identity.clone() };
        self.send(rank, &HubReply::Welcome(welcome).encode().into());
        for event in self.events.clone() {
            self.send(rank, &HubReply::Event(event).encode().into());
        }
    }

    fn put(&mut self, rank: Rank, key: String, value: Vec<u8>) -> Result<(), &'static str> {
        let Some(member) = self.member(rank) else { return Ok(()) };
        if key == PAIR_KEYS {
            return Err("a key that the launcher keeps");
        }
        if member.values.contains_key(&key) {
            return Err("a key was put twice");
        }
        if member.values.len() >= KEYS_MAX {
            return Err("too many keys");
        }
        let frame: SharedFrame = HubReply::Value { rank, key: key.clone(), value }.encode().into();
        member.values.insert(key.clone(), Arc::clone(&frame));
        self.answer(rank, &key, &frame);
        Ok(())
    }

    fn get(
        &mut self,
        rank: Rank,
        owner_rank: Option<Rank>,
        key: String,
    ) -> Result<(), &'static str> {
        let size = self.size();
        if owner_rank.is_some_and(|owner_rank| owner_rank.0 >= size) {
            return Err("a question for a rank that does not exist");
        }
        if key == PAIR_KEYS {
            let first = owner_rank.ok_or("a question for the pair keys of all ranks at once")?;
            self.tell_pair_keys(rank, first);
            return Ok(());
        }
        let mut is_open = false;
        for owner in
            owner_rank.map_or(0..size, |owner_rank| owner_rank.0..owner_rank.0 + 1).map(Rank)
        {
            let Some(member) = self.member_ref(owner) else { continue };
            match member.values.get(&key) {
                Some(frame) => {
                    let frame = Arc::clone(frame);
                    self.send(rank, &frame);
                }
                None if member.state.is_awaited() => is_open = true,
                None => {
                    let frame = HubReply::Absent { rank: owner, key: key.clone() }.encode().into();
                    self.send(rank, &frame);
                }
            }
        }
        if is_open && self.questions.entry(key).or_default().insert((rank, owner_rank)) {
            let Some(member) = self.member(rank) else { return Ok(()) };
            member.open_gets += 1;
            if member.open_gets > GETS_MAX {
                return Err("too many open questions");
            }
        }
        Ok(())
    }

    /// Tells a rank the keys that it shares with `first` and the ranks behind it.
    fn tell_pair_keys(&mut self, rank: Rank, first: Rank) {
        let key = PAIR_KEYS.to_owned();
        let reply = match &self.pair_master {
            Some(master) => {
                let keys = (first.0..self.size()).take(PAIR_KEYS_MAX).flat_map(|other| {
                    let (low, high) = (rank.0.min(other), rank.0.max(other));
                    master.tag(&[b"pair", &low.to_le_bytes(), &high.to_le_bytes()])
                });
                HubReply::Value { rank: first, key, value: keys.collect() }
            }
            None => HubReply::Absent { rank: first, key },
        };
        self.send(rank, &reply.encode().into());
    }

    /// Sends the answer of `owner` for `key` to all who asked for it.
    fn answer(&mut self, owner: Rank, key: &str, frame: &SharedFrame) {
        let Some(asking) = self.questions.get(key) else { return };
        let matching =
            |&&(_, owner_rank): &&(Rank, Option<Rank>)| owner_rank.is_none_or(|one| one == owner);
        // A rank that asked for this one and for all is answered once.
        let told: BTreeSet<Rank> = asking.iter().filter(matching).map(|&(rank, _)| rank).collect();
        for rank in told {
            self.send(rank, frame);
        }
        self.close_questions(key);
    }

    /// Forgets the questions for `key` that have been fully answered.
    fn close_questions(&mut self, key: &str) {
        let Some(asking) = self.questions.get_mut(key) else { return };
        let members = &mut self.members;
        let is_missing =
            |member: &MemberRecord| member.state.is_awaited() && !member.values.contains_key(key);
        let is_missing_somewhere = members.iter().any(is_missing);
        asking.retain(|&(rank, owner_rank)| {
            let is_open = match owner_rank {
                Some(owner_rank) => members.get(owner_rank.index()).is_some_and(is_missing),
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

    /// Reports `event`, after which no rank waits for `rank`.
    fn depart(&mut self, rank: Rank, event: WorldEvent) {
        self.tell(rank, event);
        for key in self.questions.keys().cloned().collect::<Vec<_>>() {
            // Its own questions need no answer any more.
            if let Some(asking) = self.questions.get_mut(&key) {
                asking.retain(|&(asker, _)| asker != rank);
            }
            if self.member_ref(rank).is_some_and(|member| member.values.contains_key(&key)) {
                self.close_questions(&key);
            } else {
                let absent = HubReply::Absent { rank, key: key.clone() }.encode().into();
                self.answer(rank, &key, &absent);
            }
        }
        self.let_through();
    }

    fn tell(&mut self, rank: Rank, event: WorldEvent) {
        self.events.push(event);
        let frame: SharedFrame = HubReply::Event(event).encode().into();
        for other in (0..self.size()).map(Rank).filter(|&other| other != rank) {
            self.send(other, &frame);
        }
    }

    /// Lets all ranks pass the barrier that every awaited rank has entered.
    fn let_through(&mut self) {
        let awaited = || self.members.iter().filter(|member| member.state.is_awaited());
        let Some(round) = awaited().map(|member| member.entered).min() else { return };
        if round == 0 || awaited().all(|member| member.passed >= round) {
            return;
        }
        let frame: SharedFrame = HubReply::Passed { round }.encode().into();
        for rank in (0..self.size()).map(Rank) {
            let Some(member) = self.member(rank) else { continue };
            if member.state.is_awaited() && member.passed < round {
                member.passed = round;
                self.send(rank, &frame);
            }
        }
    }

    /// Sends a frame to a rank, if it has joined and still listens.
    fn send(&mut self, rank: Rank, frame: &SharedFrame) {
        if self.member_ref(rank).is_some_and(|member| member.state == MemberState::Joined) {
            self.transmissions.push_back((rank, Arc::clone(frame)));
        }
    }
}

#[cfg(test)]
mod tests;
