//! Unwinds the copy of a stack, and names its functions.

use std::{
    fs::{self, File},
    ops::Range,
    os::unix::fs::FileExt,
    ptr,
};

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Cache, UnwindRegsAarch64, UnwinderAarch64 as Engine};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Cache, UnwindRegsX86_64, UnwinderX86_64 as Engine};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use object::{Object, ObjectSection, ObjectSegment, ReadCache, ReadRef, SegmentFlags, elf::PF_X};

use super::{
    Frame, Stack,
    ask::{Registers, Sample},
};
use crate::sync::{PoisonError, RealMutex};

pub(super) const IS_SUPPORTED: bool = true;

/// The most calls that are followed: a copy of the stack may be wrong, and lead in a circle.
const CALLS_MAX: usize = 256;

/// The functions that begin our own part of a stack, below the task's future: the cell polls it, on the kernel-level flavor inside a wrapper.
const POLLED_BY: [&str; 2] = ["vigie_runtime::task_cell::", "<vigie_runtime::flavor::"];

/// The program and its libraries, as far as they were mapped at the last request. Files are read once.
static MODULES: RealMutex<Option<Modules>> = RealMutex::new(None);

struct Modules {
    engine: Engine<Vec<u8>>,
    cache: Cache,
    /// The addresses of their code.
    known: Vec<Range<u64>>,
}

/// Returns the functions on the copied stack.
pub(super) fn unwind(sample: &Sample) -> Stack {
    let (addresses, has_end) = {
        let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Modules { engine: Engine::new(), cache: Cache::new(), known: Vec::new() };
        let modules = modules.get_or_insert_with(new);
        modules.refresh();
        modules.unwind(sample)
    };
    let mut frames = Vec::new();
    for address in addresses {
        let inlined = name(address);
        let is_ours = |frame: &Frame| {
            let function = frame.function.as_deref().unwrap_or_default();
            POLLED_BY.iter().any(|ours| function.contains(ours))
        };
        let ours = inlined.iter().position(is_ours);
        frames.extend(inlined.into_iter().take(ours.unwrap_or(usize::MAX)));
        if ours.is_some() {
            return Stack { frames, is_complete: true };
        }
    }
    Stack { frames, is_complete: has_end }
}

impl Modules {
    /// Learns what was loaded since the last request, and forgets what was unloaded.
    fn refresh(&mut self) {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mapped: Vec<_> = maps.lines().filter_map(Mapping::parse).collect();
        let engine = &mut self.engine;
        self.known.retain(|known| {
            let stays = mapped.iter().any(|mapping| mapping.range == *known);
            if !stays {
                engine.remove_module(known.start);
            }
            stays
        });
        for mapping in mapped {
            if !self.known.contains(&mapping.range) {
                // Without tables, frame pointers are followed.
                if let Some(module) = mapping.load() {
                    self.engine.add_module(module);
                    self.known.push(mapping.range);
                }
            }
        }
    }

    /// Returns the addresses of the calls, innermost first, and whether they go down to the thread's first function.
    fn unwind(&mut self, sample: &Sample) -> (Vec<FrameAddress>, bool) {
        let Registers { instruction, stack, frame, link } = sample.registers;
        #[cfg(target_arch = "x86_64")]
        let (registers, _) = (UnwindRegsX86_64::new(instruction, stack, frame), link);
        #[cfg(target_arch = "aarch64")]
        let registers = UnwindRegsAarch64::new(link, stack, frame);

        let mut read = |address| sample.word(address).ok_or(());
        let mut calls = self.engine.iter_frames(instruction, registers, &mut self.cache, &mut read);
        let mut addresses = Vec::new();
        while addresses.len() < CALLS_MAX {
            match calls.next() {
                Ok(Some(address)) => addresses.push(address),
                Ok(None) => return (addresses, true),
                Err(_) => break,
            }
        }
        (addresses, false)
    }
}

/// Code that is mapped into this process.
struct Mapping<'a> {
    range: Range<u64>,
    offset: u64,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    /// Parses a line of `/proc/self/maps`; `None` if it is no code from a file.
    fn parse(line: &'a str) -> Option<Self> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let is_code = words.next()?.as_bytes().get(2) == Some(&b'x');
        let offset = hex(words.next()?)?;
        let path = words.nth(2)?.trim_start();
        let range = hex(start)?..hex(end)?;
        (is_code && !path.is_empty()).then_some(Self { range, offset, path })
    }

    fn load(&self) -> Option<Module<Vec<u8>>> {
        if self.path == "[vdso]" {
            // The kernel's own library, which is no file: clocks are read there.
            let size = usize::try_from(self.range.end - self.range.start).ok()?;
            let mut image = vec![0; size];
            File::open("/proc/self/mem").ok()?.read_exact_at(&mut image, self.range.start).ok()?;
            return self.module(&*image);
        }
        // The program may have been replaced since it was started.
        let program = fs::read_link("/proc/self/exe").ok()?;
        let is_program = program.to_str() == Some(self.path);
        let path = if is_program { "/proc/self/exe" } else { self.path };
        // Only the parts that are needed are read: debug information may have gigabytes.
        self.module(&ReadCache::new(File::open(path).ok()?))
    }

    fn module<'d>(&self, data: impl ReadRef<'d>) -> Option<Module<Vec<u8>>> {
        let file = object::File::parse(data).ok()?;
        let is_code =
            |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0);
        // A segment's first page may begin before the segment does.
        let code = file.segments().find(|segment| {
            let (offset, bytes) = segment.file_range();
            is_code(segment.flags()) && (offset & !0xfff..offset + bytes).contains(&self.offset)
        })?;
        let (file_offset, _) = code.file_range();
        let base = self.range.start.wrapping_sub(self.offset);
        let base = base.wrapping_sub(code.address().wrapping_sub(file_offset));

        let section = |name: &str| file.section_by_name(name);
        let range = |name: &str| {
            section(name).map(|section| section.address()..section.address() + section.size())
        };
        let bytes = |name: &str| Some(section(name)?.data().ok()?.to_vec());
        let sections = ExplicitModuleSectionInfo {
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: bytes(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: bytes(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(Module::new(self.path.to_owned(), self.range.clone(), base, sections))
    }
}

/// Returns the function at an address, and before it those that are inlined there.
fn name(call: FrameAddress) -> Vec<Frame> {
    let address = call.address();
    // `resolve` expects an address that is returned to, and inspects the instruction before.
    let returns_to = if call.is_return_address() { address } else { address.wrapping_add(1) };
    let mut frames = Vec::new();
    let pointer = ptr::without_provenance_mut(usize::try_from(returns_to).unwrap_or(0));
    backtrace::resolve(pointer, |symbol| {
        frames.push(Frame {
            address,
            function: symbol.name().map(|name| format!("{name:#}")),
            file: symbol.filename().map(|path| path.display().to_string()),
            line: symbol.lineno(),
        });
    });
    if frames.is_empty() {
        frames.push(Frame { address, function: None, file: None, line: None });
    }
    frames
}
