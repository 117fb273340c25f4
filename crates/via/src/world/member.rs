//! A rank's side of a rendezvous, without I/O: what it has sent, and what it has received.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use super::{
    Membership, Rank, WorldError, WorldEvent,
    hub::{GETS_MAX, KEYS_MAX},
    rounds::Rounds,
    waiting::{StateMachine, Waiters},
    wire::{HubReply, HubRequest, VERSION, WireError},
};

/// The state of a rank in a rendezvous.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) membership: Option<Membership>,
    /// Answers: what a rank has put, or that it is gone without having put it.
    values: BTreeMap<String, BTreeMap<Rank, Option<Vec<u8>>>>,
    /// The questions asked: whose value (`None` for all ranks), and the key.
    asked: BTreeSet<(Option<Rank>, String)>,
    put: BTreeSet<String>,
    rounds: Rounds,
    events: Vec<WorldEvent>,
    has_left: bool,
    end: Option<MemberFailure>,
    /// Messages that the link has not fetched yet. Bounded by what a rank may send before it receives an
    /// answer.
    pub(super) said: Vec<HubRequest>,
    waiters: Waiters,
}

/// The reason why nothing more will be received.
#[derive(Debug)]
enum MemberFailure {
    Lost,
    Expelled(String),
    Broken(WireError),
    Disorder(&'static str),
    Missing { count: u32, ranks: Vec<Rank> },
}

impl Member {
    /// Asks which rank this is.
    pub(super) fn greet(&mut self) {
        self.said.push(HubRequest::Hello { version: VERSION });
    }

    /// Publishes a value.
    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> Result<(), WorldError> {
        self.check()?;
        if self.put.len() >= KEYS_MAX {
            return Err(WorldError::TooMany { what: "keys", limit: KEYS_MAX });
        }
        if !self.put.insert(key.to_owned()) {
            return Err(WorldError::AlreadyPut { key: key.to_owned() });
        }
        self.said.push(HubRequest::Put { key: key.to_owned(), value: value.to_vec() });
        Ok(())
    }

    /// Asks for a value of `rank` (`None` for all ranks), unless it was asked for before.
    pub(super) fn ask(&mut self, rank: Option<Rank>, key: &str) -> Result<(), WorldError> {
        if self.is_known(rank, key) {
            return Ok(());
        }
        self.check()?;
        let question = (rank, key.to_owned());
        if self.asked.contains(&question) || self.asked.contains(&(None, key.to_owned())) {
            return Ok(());
        }
        self.forget_answered();
        if self.asked.len() >= GETS_MAX {
            return Err(WorldError::TooMany { what: "open questions", limit: GETS_MAX });
        }
        self.asked.insert(question);
        self.said.push(HubRequest::Get { rank, key: key.to_owned() });
        Ok(())
    }

    fn forget_answered(&mut self) {
        let asked = mem::take(&mut self.asked);
        self.asked = asked.into_iter().filter(|(rank, key)| !self.is_known(*rank, key)).collect();
    }

    fn is_known(&self, rank: Option<Rank>, key: &str) -> bool {
        let values = self.values.get(key);
        values.is_some_and(|values| match rank {
            Some(rank) => values.contains_key(&rank),
            None => values.len() == self.size() as usize,
        })
    }

    /// Returns the answer for `rank`, if it is there.
    pub(super) fn answer(&self, rank: Rank, key: &str) -> Option<Option<Vec<u8>>> {
        self.values.get(key)?.get(&rank).cloned()
    }

    /// Returns the answers of all ranks, if they are there.
    pub(super) fn answers(&self, key: &str) -> Option<Vec<Option<Vec<u8>>>> {
        let values = self.values.get(key).filter(|values| values.len() == self.size() as usize)?;
        Some(values.values().cloned().collect())
    }

    /// Returns the ranks of which no answer is there.
    pub(super) fn unanswered(&self, key: &str) -> Vec<Rank> {
        let is_open = |rank: &Rank| self.answer(*rank, key).is_none();
        (0..self.size()).map(Rank).filter(is_open).collect()
    }

    /// Returns the ranks that are gone, and of the others those whose values have come.
    pub(super) fn gone_and_heard(&self) -> (BTreeSet<Rank>, BTreeSet<Rank>) {
        let gone: BTreeSet<Rank> = self.events.iter().map(WorldEvent::rank).collect();
        let values = self.values.values().flatten();
        let heard = values.filter(|(rank, value)| value.is_some() && !gone.contains(rank));
        let heard = heard.map(|(rank, _)| *rank).filter(|rank| Some(*rank) != self.own_rank());
        let heard = heard.collect();
        (gone, heard)
    }

    fn own_rank(&self) -> Option<Rank> {
        self.membership.as_ref().map(|membership| membership.rank)
    }

    /// Enters a barrier, unless this rank is already in it. Returns the barrier's number.
    pub(super) fn enter(&mut self) -> Result<u32, WorldError> {
        if !self.rounds.is_inside() {
            self.check()?;
            let round = self.rounds.enter()?;
            self.said.push(HubRequest::Enter { round });
        }
        Ok(self.rounds.entered())
    }

    /// Returns whether the barrier is passed; the caller then reports it.
    pub(super) fn pass(&mut self, round: u32) -> bool {
        self.rounds.tell(round)
    }

    pub(super) fn event(&self, index: usize) -> Option<WorldEvent> {
        self.events.get(index).copied()
    }

    /// Leaves, unless it has left before.
    pub(super) fn leave(&mut self) -> Result<(), WorldError> {
        if self.has_left {
            return Ok(());
        }
        self.check()?;
        self.has_left = true;
        self.said.push(HubRequest::Leave);
        Ok(())
    }

    /// Handles a frame of the launcher, without its length.
    pub(super) fn receive(&mut self, frame: &[u8]) {
        match HubReply::decode(frame) {
            Ok(reply) => {
                if let Err(what) = self.take(reply) {
                    self.close(MemberFailure::Disorder(what));
                }
            }
            Err(error) => self.close(MemberFailure::Broken(error)),
        }
        self.waiters.moved();
    }

    /// Records that the stream has become meaningless.
    pub(super) fn receive_nonsense(&mut self, error: WireError) {
        self.close(MemberFailure::Broken(error));
    }

    /// Records that the launcher is gone.
    pub(super) fn lose(&mut self) {
        self.close(MemberFailure::Lost);
    }

    /// Returns whether nothing more will be received.
    pub(super) const fn is_over(&self) -> bool {
        self.end.is_some()
    }

    fn close(&mut self, end: MemberFailure) {
        self.end.get_or_insert(end);
        self.waiters.moved();
    }

    fn take(&mut self, reply: HubReply) -> Result<(), &'static str> {
        if let (None, HubReply::Value { .. } | HubReply::Absent { .. } | HubReply::Event(_)) =
            (&self.membership, &reply)
        {
            return Err("it told something before its welcome");
        }
        match reply {
            HubReply::Welcome(_) if self.membership.is_some() => return Err("a second welcome"),
            HubReply::Welcome(membership) => self.membership = Some(membership),
            HubReply::Value { rank, key, value } => self.learn(rank, key, Some(value))?,
            HubReply::Absent { rank, key } => self.learn(rank, key, None)?,
            HubReply::Passed { round } => {
                if !self.rounds.pass(round) {
                    return Err("it opened a barrier out of order");
                }
            }
            HubReply::Event(event) => {
                // At most two events per rank: expelled or left, and ended.
                let count = self.events.iter().filter(|known| known.rank() == event.rank()).count();
                if event.rank().0 >= self.size() || count >= 2 {
                    return Err("it told of a rank that does not exist or was gone already");
                }
                self.events.push(event);
            }
            HubReply::Expelled { why } => self.close(MemberFailure::Expelled(why)),
            HubReply::Missing { count, ranks } => {
                self.close(MemberFailure::Missing { count, ranks })
            }
        }
        Ok(())
    }

    fn learn(
        &mut self,
        rank: Rank,
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<(), &'static str> {
        let is_asked =
            [Some(rank), None].into_iter().any(|whose| self.asked.contains(&(whose, key.clone())));
        if rank.0 >= self.size() || !(is_asked || self.answer(rank, &key).is_some()) {
            return Err("it told a value that was not asked for");
        }
        self.values.entry(key).or_default().entry(rank).or_insert(value);
        Ok(())
    }

    fn size(&self) -> u32 {
        self.membership.as_ref().map_or(0, |membership| membership.size)
    }
}

impl StateMachine for Member {
    fn check(&self) -> Result<(), WorldError> {
        if self.has_left {
            return Err(WorldError::Left);
        }
        match &self.end {
            None => Ok(()),
            Some(MemberFailure::Lost) => Err(WorldError::LauncherLost),
            Some(MemberFailure::Expelled(why)) => Err(WorldError::Expelled { why: why.clone() }),
            Some(MemberFailure::Broken(error)) => Err((*error).into()),
            Some(MemberFailure::Disorder(what)) => Err(WorldError::Disorder(what)),
            Some(MemberFailure::Missing { count, ranks }) => {
                Err(WorldError::Missing { count: *count, ranks: ranks.clone() })
            }
        }
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}
