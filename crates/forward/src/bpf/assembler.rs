//! Builds programs from instructions and labels.

use super::{
    helper::Helper,
    insn::{Atomic, Condition, Insn, Operand, Operation, Register, Size, Width},
    map::MapSpec,
    program::{Program, ProgramError, ProgramKind},
};

/// A jump target in a program: made by [`Assembler::label`], placed by [`Assembler::bind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A map of the program under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MapId(u32);

/// Builds a program, instruction by instruction.
///
/// # Examples
/// ```
/// use vigie_forward::bpf::{Assembler, Condition, ProgramKind, Register::*, Size, XDP_DROP, XDP_PASS};
///
/// // Frames shorter than a header are dropped, all others pass.
/// let mut a = Assembler::new("no_runts", ProgramKind::Xdp);
/// let short = a.label();
/// a.load(Size::Word, R2, R1, 0);
/// a.load(Size::Word, R3, R1, 4);
/// a.add(R2, 14);
/// a.branch(Condition::Greater, R2, R3, short);
/// a.set(R0, XDP_PASS).exit();
/// a.bind(short).set(R0, XDP_DROP).exit();
/// assert_eq!(a.finish()?.insns().len(), 8);
/// # Ok::<(), vigie_forward::bpf::ProgramError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`finish` makes the program"]
pub struct Assembler {
    name: String,
    kind: ProgramKind,
    insns: Vec<Insn>,
    /// Words so far.
    at: usize,
    /// The position of each label.
    labels: Vec<Option<usize>>,
    /// The jumps: the word of the instruction, and its label.
    jumps: Vec<(usize, Label)>,
    maps: Vec<MapSpec>,
    bound_twice: Option<Label>,
    leaves_dead_out: bool,
    /// True if control can reach the next instruction.
    is_reached: bool,
}

impl Assembler {
    /// Starts a program.
    pub fn new(name: impl Into<String>, kind: ProgramKind) -> Self {
        Self {
            name: name.into(),
            kind,
            insns: Vec::new(),
            at: 0,
            labels: Vec::new(),
            jumps: Vec::new(),
            maps: Vec::new(),
            bound_twice: None,
            leaves_dead_out: false,
            is_reached: true,
        }
    }

    /// Omits unreachable instructions: those behind a jump or an exit to which no earlier jump leads. The kernel
    /// refuses programs that contain such. A backward jump into an omitted part fails: its label counts as unbound.
    pub const fn without_dead_code(mut self) -> Self {
        self.leaves_dead_out = true;
        self
    }

    /// Returns the kind of the program.
    #[must_use]
    pub const fn kind(&self) -> ProgramKind {
        self.kind
    }

    /// Adds a map to the program.
    pub fn map(&mut self, spec: MapSpec) -> MapId {
        self.maps.push(spec);
        MapId(u32::try_from(self.maps.len() - 1).unwrap_or(u32::MAX))
    }

    /// Creates an unbound label.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the next instruction.
    pub fn bind(&mut self, label: Label) -> &mut Self {
        self.is_reached |= self.jumps.iter().any(|(_, to)| *to == label);
        if self.is_dead() {
            return self;
        }
        let place = &mut self.labels[label.0];
        if place.replace(self.at).is_some() {
            self.bound_twice.get_or_insert(label);
        }
        self
    }

    const fn is_dead(&self) -> bool {
        self.leaves_dead_out && !self.is_reached
    }

    /// Appends any instruction.
    pub fn push(&mut self, insn: Insn) -> &mut Self {
        if self.is_dead() {
            return self;
        }
        self.is_reached = !matches!(insn, Insn::Jump { .. } | Insn::Exit);
        self.at += insn.words();
        self.insns.push(insn);
        self
    }

    fn arithmetic(
        &mut self,
        width: Width,
        operation: Operation,
        to: Register,
        by: impl Into<Operand>,
    ) -> &mut Self {
        self.push(Insn::Arithmetic { width, operation, to, by: by.into() })
    }

    /// Appends `to = value`, on 64 bits.
    pub fn set(&mut self, to: Register, value: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Width::W64, Operation::Move, to, value)
    }

    /// Appends `to = to + value`, on 64 bits.
    pub fn add(&mut self, to: Register, value: impl Into<Operand>) -> &mut Self {
        self.arithmetic(Width::W64, Operation::Add, to, value)
    }

    /// Appends `to = to OPERATION value`, on 64 bits.
    pub fn compute(
        &mut self,
        operation: Operation,
        to: Register,
        value: impl Into<Operand>,
    ) -> &mut Self {
        self.arithmetic(Width::W64, operation, to, value)
    }

    /// Appends `to = to OPERATION value`, on 32 bits; the upper half is cleared.
    pub fn compute32(
        &mut self,
        operation: Operation,
        to: Register,
        value: impl Into<Operand>,
    ) -> &mut Self {
        self.arithmetic(Width::W32, operation, to, value)
    }

    /// Appends `to = value`, for constants that do not fit into 32 bits, sign-extended.
    pub fn constant(&mut self, to: Register, value: u64) -> &mut Self {
        match i32::try_from(value) {
            Ok(small) => self.set(to, small),
            Err(_) => self.push(Insn::Constant { to, value }),
        }
    }

    /// Appends `to = map`.
    pub fn load_map(&mut self, to: Register, map: MapId) -> &mut Self {
        self.push(Insn::Map { to, map: map.0 })
    }

    /// Appends the exchange of the bytes of `to` between network order and the machine's own.
    pub fn network_order(&mut self, size: Size, to: Register) -> &mut Self {
        self.push(Insn::NetworkOrder { size, to })
    }

    /// Appends `to = *(from + offset)`.
    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) -> &mut Self {
        self.push(Insn::Load { size, to, from, offset })
    }

    /// Appends `*(to + offset) = value`.
    pub fn store(
        &mut self,
        size: Size,
        to: Register,
        offset: i16,
        value: impl Into<Operand>,
    ) -> &mut Self {
        self.push(Insn::Store { size, to, offset, value: value.into() })
    }

    /// Appends an atomic operation on `*(to + offset)`.
    pub fn atomic(
        &mut self,
        size: Size,
        operation: Atomic,
        to: Register,
        offset: i16,
        from: Register,
    ) -> &mut Self {
        self.push(Insn::Atomic { size, operation, to, offset, from })
    }

    /// Appends a call.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(Insn::Call(helper))
    }

    /// Appends R0 = the [`ChecksumState`](Insn::ChecksumState) of the packet whose context is in R1.
    pub fn checksum_state(&mut self) -> &mut Self {
        self.push(Insn::ChecksumState)
    }

    /// Appends the exit of the program.
    pub fn exit(&mut self) -> &mut Self {
        self.push(Insn::Exit)
    }

    fn leads_to(&mut self, label: Label) {
        if !self.is_dead() {
            self.jumps.push((self.insns.len(), label));
        }
    }

    /// Appends a jump.
    pub fn jump(&mut self, to: Label) -> &mut Self {
        self.leads_to(to);
        self.push(Insn::Jump { offset: 0 })
    }

    /// Appends a jump that is taken if `condition` holds, on 64 bits.
    pub fn branch(
        &mut self,
        condition: Condition,
        of: Register,
        with: impl Into<Operand>,
        to: Label,
    ) -> &mut Self {
        self.leads_to(to);
        self.push(Insn::Branch { width: Width::W64, condition, of, with: with.into(), offset: 0 })
    }

    /// Appends a jump that is taken if `condition` holds, on 32 bits.
    pub fn branch32(
        &mut self,
        condition: Condition,
        of: Register,
        with: impl Into<Operand>,
        to: Label,
    ) -> &mut Self {
        self.leads_to(to);
        self.push(Insn::Branch { width: Width::W32, condition, of, with: with.into(), offset: 0 })
    }

    /// Resolves the labels and returns the program.
    ///
    /// # Errors
    /// [`ProgramError`] if a label is unbound or bound twice, a jump is too long, or the program is invalid.
    pub fn finish(mut self) -> Result<Program, ProgramError> {
        if let Some(label) = self.bound_twice {
            return Err(ProgramError::BoundTwice { label: label.0 });
        }
        let mut places = Vec::with_capacity(self.insns.len());
        let mut at = 0;
        for insn in &self.insns {
            places.push(at);
            at += insn.words();
        }
        for (index, label) in &self.jumps {
            let place = self.labels[label.0].ok_or(ProgramError::Unbound { label: label.0 })?;
            let at = places[*index];
            let too_far = ProgramError::TooFar { at };
            let distance = i64::try_from(place).map_err(|_| too_far)?
                - i64::try_from(at + 1).map_err(|_| too_far)?;
            let distance = i16::try_from(distance).map_err(|_| too_far)?;
            if let Insn::Jump { offset } | Insn::Branch { offset, .. } = &mut self.insns[*index] {
                *offset = distance;
            }
        }
        Program::new(self.name, self.kind, self.insns, self.maps)
    }
}

#[cfg(test)]
mod tests {
    use super::{Register::*, *};

    fn assembler() -> Assembler {
        Assembler::new("test", ProgramKind::Xdp)
    }

    /// Goal: jumps count words, in both directions. Method: a constant of two words between.
    #[test]
    fn labels_become_offsets() {
        let mut a = assembler();
        let (back, front) = (a.label(), a.label());
        a.bind(back).jump(front).constant(R1, u64::MAX).jump(back).bind(front).exit();
        let program = a.finish().unwrap();
        assert_eq!(program.insns()[0], Insn::Jump { offset: 3 });
        assert_eq!(program.insns()[2], Insn::Jump { offset: -4 });
    }

    /// Goal: unreachable code is left out. Method: code behind an exit, with and without a jump to it.
    #[test]
    fn dead_code_is_left_out() {
        let mut a = assembler().without_dead_code();
        let (live, dead) = (a.label(), a.label());
        a.set(R0, 1).branch(Condition::Equal, R0, 1, live).exit();
        a.bind(dead).set(R0, 2).jump(dead).bind(live).exit();
        assert_eq!(a.finish().unwrap().insns().len(), 4);
    }

    /// Goal: each mistake has its error. Method: one of each kind.
    #[test]
    fn mistakes_are_typed() {
        let mut a = assembler();
        let label = a.label();
        a.jump(label);
        assert_eq!(a.finish(), Err(ProgramError::Unbound { label: 0 }));
        let mut a = assembler();
        let label = a.label();
        a.bind(label).exit().bind(label).exit();
        assert_eq!(a.finish(), Err(ProgramError::BoundTwice { label: 0 }));
        let mut a = assembler();
        let label = a.label();
        a.jump(label);
        for _ in 0..40_000 {
            a.set(R0, 0);
        }
        a.bind(label).exit();
        assert_eq!(a.finish(), Err(ProgramError::TooFar { at: 0 }));
        assert_eq!(assembler().finish(), Err(ProgramError::Empty));
        let mut a = assembler();
        a.set(R0, 0);
        assert_eq!(a.finish(), Err(ProgramError::RunsOff));
        let mut a = assembler();
        a.push(Insn::Map { to: R1, map: 0 }).exit();
        assert_eq!(a.finish(), Err(ProgramError::NoMap { at: 0, map: 0, count: 0 }));
        let mut a = assembler();
        a.push(Insn::Jump { offset: 1 }).constant(R1, u64::MAX).exit();
        assert_eq!(a.finish(), Err(ProgramError::Jump { at: 0 }));
    }
}
