//! A rank's side of PMI-1, without I/O: what it has sent, and what it has received.
//!
//! ```text
//!          init   maxes   name      put (rank 0)   barrier        get
//!   Silent ──1──▶  ──1──▶  ──1──▶ Named ──2──▶  ──2──▶  ──2──▶ Known ──3──▶ Left
//! ```
//! 1 is [`Client::greet`] and what follows from the answers. In 2, rank 0 tells the others the identity of
//! the world, which launchers of this kind do not make. In `Known`, the rank sends what its program asks for;
//! 3 is [`Client::leave`]. Each line is answered before the next is sent: launchers read one line at a time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
};

use super::{
    PmiError,
    line::{LINE_BYTES_MAX, Lines, PmiResponse, ValueParts, encode},
};
use crate::world::{
    Identity, Membership, Rank, WorldError,
    hub::{GETS_MAX, KEYS_MAX},
    rounds::Rounds,
    socket::Conversation,
    waiting::{StateMachine, Waiters},
    wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX},
};

/// The key under which rank 0 publishes the world's identity; no program can put it.
const IDENTITY_KEY: &str = "";

/// The longest name of a piece of a value: `v`, a rank, the number of the piece, a key, two full stops.
const NAME_BYTES_MAX: usize = 1 + 10 + 1 + 10 + 1 + KEY_BYTES_MAX;

/// The fewest characters that a value must hold to be useful.
const ROOM_BYTES_MIN: usize = 16;

/// The longest name of a key-value space.
const SPACE_BYTES_MAX: usize = 256;

/// The state of a rank under a PMI-1 launcher.
pub(super) struct Client {
    rank: Rank,
    size: u32,
    /// Rank 0's identity is the world's.
    identity: Identity,
    pub(super) membership: Option<Membership>,
    /// The name of the launcher's key-value space.
    space: String,
    /// The characters that the launcher carries in one value.
    room_bytes: usize,
    /// Commands to send after the current one is answered. Bounded by the puts, gets and barriers that a rank
    /// may have open.
    queue: VecDeque<PmiCommand>,
    in_flight: Option<PmiCommand>,
    lines: Lines,
    outgoing: Vec<u8>,
    put: BTreeSet<String>,
    /// The number of lines with values that were queued, and that were answered.
    puts_said: u64,
    puts_done: u64,
    asked: BTreeMap<(Rank, String), GetState>,
    rounds: Rounds,
    is_leaving: bool,
    has_left: bool,
    end: Option<PmiFailure>,
    waiters: Waiters,
}

/// A command that was sent, kept to interpret its answer.
enum PmiCommand {
    Init,
    Maxes,
    Name,
    Put {
        name: String,
        text: String,
    },
    /// `None`: the barrier before the identity is read.
    Enter {
        round: Option<u32>,
    },
    Get {
        rank: Rank,
        key: String,
        piece: u32,
    },
    Finalize,
}

/// The state of a question.
enum GetState {
    Open(ValueParts),
    Found(Vec<u8>),
    /// There was no value. It may come later.
    Missing,
}

/// The reason why nothing more will be received.
enum PmiFailure {
    Lost,
    Broken(PmiError),
}

impl Client {
    pub(super) fn new(rank: Rank, size: u32, identity: Identity) -> Self {
        Self {
            rank,
            size,
            identity,
            membership: None,
            space: String::new(),
            room_bytes: 0,
            queue: VecDeque::new(),
            in_flight: None,
            lines: Lines::default(),
            outgoing: Vec::new(),
            put: BTreeSet::new(),
            puts_said: 0,
            puts_done: 0,
            asked: BTreeMap::new(),
            rounds: Rounds::default(),
            is_leaving: false,
            has_left: false,
            end: None,
            waiters: Waiters::default(),
        }
    }

    /// Begins the conversation.
    pub(super) fn greet(&mut self) {
        self.queue.extend([PmiCommand::Init, PmiCommand::Maxes, PmiCommand::Name]);
    }

    /// Publishes a value. Returns the argument for [`is_put`](Self::is_put).
    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> Result<u64, WorldError> {
        self.check_open()?;
        if self.put.len() >= KEYS_MAX {
            return Err(WorldError::TooMany { what: "keys", limit: KEYS_MAX });
        }
        if !self.put.insert(key.to_owned()) {
            return Err(WorldError::AlreadyPut { key: key.to_owned() });
        }
        self.publish(key, value);
        Ok(self.puts_said)
    }

    /// Returns whether the launcher has received the value.
    pub(super) const fn is_put(&self, said: u64) -> bool {
        self.puts_done >= said
    }

    /// Asks for a value, unless it is known or being asked for.
    pub(super) fn ask(&mut self, rank: Rank, key: &str) -> Result<(), WorldError> {
        let question = (rank, key.to_owned());
        if let Some(GetState::Open(_) | GetState::Found(_)) = self.asked.get(&question) {
            return Ok(());
        }
        self.check_open()?;
        let is_open = |asked: &&GetState| matches!(asked, GetState::Open(_));
        if self.asked.values().filter(is_open).count() >= GETS_MAX {
            return Err(WorldError::TooMany { what: "open questions", limit: GETS_MAX });
        }
        self.question(rank, key);
        Ok(())
    }

    /// Returns the answer, if it is there.
    pub(super) fn answer(&self, rank: Rank, key: &str) -> Option<Result<Vec<u8>, WorldError>> {
        match self.asked.get(&(rank, key.to_owned()))? {
            GetState::Open(_) => None,
            GetState::Found(value) => Some(Ok(value.clone())),
            GetState::Missing => Some(Err(WorldError::NotPut { rank, key: key.to_owned() })),
        }
    }

    /// Enters a barrier, unless this rank is already in it. Returns the barrier's number.
    pub(super) fn enter(&mut self) -> Result<u32, WorldError> {
        if !self.rounds.is_inside() {
            self.check_open()?;
            let round = self.rounds.enter()?;
            self.queue.push_back(PmiCommand::Enter { round: Some(round) });
        }
        Ok(self.rounds.entered())
    }

    /// Returns whether the barrier is passed; the caller then reports it.
    pub(super) fn pass(&mut self, round: u32) -> bool {
        self.rounds.tell(round)
    }

    /// Leaves, unless it has left before.
    pub(super) fn leave(&mut self) -> Result<(), WorldError> {
        if !self.is_leaving {
            self.check_open()?;
            self.is_leaving = true;
            self.queue.push_back(PmiCommand::Finalize);
        }
        Ok(())
    }

    /// Returns whether the launcher knows that this rank has left.
    pub(super) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Asks the launcher to end all ranks, whatever else is under way.
    pub(super) fn abort(&mut self, code: i32) {
        self.outgoing.extend_from_slice(format!("cmd=abort exitcode={code}\n").as_bytes());
    }

    fn check_open(&self) -> Result<(), WorldError> {
        if self.is_leaving {
            return Err(WorldError::Left);
        }
        self.check()
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        let text = encode(value);
        // All of it is ASCII.
        for (piece, text) in (0..).zip(text.as_bytes().chunks(self.room_bytes.max(1))) {
            let text = String::from_utf8_lossy(text).into_owned();
            self.queue.push_back(PmiCommand::Put { name: name(self.rank, piece, key), text });
            self.puts_said += 1;
        }
    }

    fn question(&mut self, rank: Rank, key: &str) {
        self.asked.insert((rank, key.to_owned()), GetState::Open(ValueParts::default()));
        self.queue.push_back(PmiCommand::Get { rank, key: key.to_owned(), piece: 0 });
    }

    /// Sends the next line, if the last one was answered.
    fn advance(&mut self) {
        if self.in_flight.is_none()
            && let Some(said) = self.queue.pop_front()
        {
            let line = self.line(&said);
            debug_assert!(line.len() <= LINE_BYTES_MAX, "invariant: the launcher reads such lines");
            self.outgoing.extend_from_slice(line.as_bytes());
            self.in_flight = Some(said);
        }
    }

    fn line(&self, said: &PmiCommand) -> String {
        let space = &self.space;
        match said {
            PmiCommand::Init => "cmd=init pmi_version=1 pmi_subversion=1\n".to_owned(),
            PmiCommand::Maxes => "cmd=get_maxes\n".to_owned(),
            PmiCommand::Name => "cmd=get_my_kvsname\n".to_owned(),
            PmiCommand::Put { name, text } => {
                format!("cmd=put kvsname={space} key={name} value={text}\n")
            }
            PmiCommand::Enter { .. } => "cmd=barrier_in\n".to_owned(),
            PmiCommand::Get { rank, key, piece } => {
                format!("cmd=get kvsname={space} key={}\n", name(*rank, *piece, key))
            }
            PmiCommand::Finalize => "cmd=finalize\n".to_owned(),
        }
    }

    /// Handles a line of the launcher.
    fn take(&mut self, line: &[u8]) -> Result<(), PmiError> {
        let answer = PmiResponse::parse(line)?;
        match self.in_flight.take() {
            None => return answer.expect("nothing"),
            Some(PmiCommand::Init) => answer.expect("response_to_init")?,
            Some(PmiCommand::Maxes) => {
                answer.expect("maxes")?;
                self.room_bytes = room(&answer)?;
            }
            Some(PmiCommand::Name) => {
                answer.expect("my_kvsname")?;
                self.settle(answer.text("kvsname")?)?;
            }
            Some(PmiCommand::Put { .. }) => {
                answer.expect("put_result")?;
                self.puts_done += 1;
            }
            Some(PmiCommand::Enter { round }) => {
                answer.expect("barrier_out")?;
                // It is the one that was entered: no other is under way.
                let is_due = round.is_none_or(|round| self.rounds.pass(round));
                debug_assert!(is_due, "invariant: barriers are entered one after the other");
            }
            Some(PmiCommand::Get { rank, key, .. }) => self.learn(&answer, rank, key)?,
            Some(PmiCommand::Finalize) => {
                answer.expect("finalize_ack")?;
                self.has_left = true;
            }
        }
        Ok(())
    }

    /// Records the name of the key-value space, and goes on to the identity of the world.
    fn settle(&mut self, space: &str) -> Result<(), PmiError> {
        if !(1..=SPACE_BYTES_MAX).contains(&space.len()) {
            let text = super::line::shown(space);
            return Err(PmiError::BadField { field: "kvsname", text });
        }
        space.clone_into(&mut self.space);
        let frame = "cmd=put kvsname= key= value=\n".len() + space.len() + NAME_BYTES_MAX;
        let line = "lines";
        let needed = frame + ROOM_BYTES_MIN;
        let too_short = PmiError::TooShort { what: line, limit: LINE_BYTES_MAX, needed };
        let room = LINE_BYTES_MAX.checked_sub(frame).filter(|&room| room >= ROOM_BYTES_MIN);
        self.room_bytes = self.room_bytes.min(room.ok_or(too_short)?);
        if self.rank == Rank(0) {
            let identity = [&self.identity.id[..], &self.identity.secret[..]].concat();
            self.publish(IDENTITY_KEY, &identity);
        }
        self.queue.push_back(PmiCommand::Enter { round: None });
        self.question(Rank(0), IDENTITY_KEY);
        Ok(())
    }

    fn learn(&mut self, answer: &PmiResponse<'_>, rank: Rank, key: String) -> Result<(), PmiError> {
        let is_found = answer.is_success("get_result")?;
        let question = (rank, key);
        let Some(GetState::Open(pieces)) = self.asked.get_mut(&question) else { return Ok(()) };
        let now = if is_found {
            match pieces.add(answer.text("value")?, VALUE_BYTES_MAX)? {
                Some(value) => GetState::Found(value),
                None => {
                    let (piece, key) = (pieces.count, question.1);
                    self.queue.push_front(PmiCommand::Get { rank, key, piece });
                    return Ok(());
                }
            }
        } else {
            // Report it even if only a later piece is missing: before the barrier some pieces may be there
            // and others not.
            GetState::Missing
        };
        if question.1 == IDENTITY_KEY {
            return self.enrol(now);
        }
        self.asked.insert(question, now);
        Ok(())
    }

    fn enrol(&mut self, told: GetState) -> Result<(), PmiError> {
        let bad =
            || PmiError::BadField { field: "value", text: "no identity of a world".to_owned() };
        let GetState::Found(bytes) = told else { return Err(bad()) };
        let (id, secret) = bytes.split_first_chunk().ok_or_else(bad)?;
        let secret = secret.try_into().map_err(|_| bad())?;
        let identity = Identity { id: *id, secret };
        self.asked.remove(&(Rank(0), IDENTITY_KEY.to_owned()));
        self.membership = Some(Membership::new(self.rank, self.size, identity));
        Ok(())
    }

    fn close(&mut self, end: PmiFailure) {
        if self.is_leaving {
            // Some launchers close the connection instead of answering.
            self.has_left = true;
        }
        self.end.get_or_insert(end);
        self.waiters.moved();
    }
}

impl StateMachine for Client {
    fn check(&self) -> Result<(), WorldError> {
        match &self.end {
            _ if self.has_left => Err(WorldError::Left),
            None => Ok(()),
            Some(PmiFailure::Lost) => Err(WorldError::LauncherLost),
            Some(PmiFailure::Broken(error)) => Err(error.clone().into()),
        }
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Conversation for Client {
    type StateMachine = Self;

    fn machine(&mut self) -> &mut Self {
        self
    }

    fn outgoing(&mut self) -> &mut Vec<u8> {
        self.advance();
        &mut self.outgoing
    }

    fn receive_bytes(&mut self, bytes: &[u8]) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.feed(bytes);
        while self.end.is_none() {
            let taken = match lines.next_line() {
                Ok(Some(line)) => self.take(line),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                self.close(PmiFailure::Broken(error));
            }
        }
        self.lines = lines;
        self.waiters.moved();
    }

    fn lose(&mut self) {
        self.close(PmiFailure::Lost);
    }

    fn is_over(&self) -> bool {
        self.end.is_some()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// Returns the name of a piece of a value.
fn name(rank: Rank, piece: u32, key: &str) -> String {
    format!("v{}.{piece}.{key}", rank.0)
}

/// Returns how many characters the launcher carries in one value; its limits count a terminator.
fn room(answer: &PmiResponse<'_>) -> Result<usize, PmiError> {
    let (names, values) = (answer.number("keylen_max")?, answer.number("vallen_max")?);
    let check = |what, limit: usize, needed| match limit.checked_sub(1) {
        Some(room) if room >= needed => Ok(room),
        _ => Err(PmiError::TooShort { what, limit, needed: needed + 1 }),
    };
    check("names", names, NAME_BYTES_MAX)?;
    let answer = "cmd=get_result rc=0 msg=success value=\n".len();
    Ok(check("values", values, ROOM_BYTES_MIN)?.min(LINE_BYTES_MAX - answer))
}
