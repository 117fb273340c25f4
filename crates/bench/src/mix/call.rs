//! Blocking calls, the same for tasks and threads.

use std::fs::File;
use std::hint;
use std::io::{self, Read};
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::behaviour::Call;
use crate::clock;

const FILE_BYTES: usize = 256 * 1024;
const RANDOM_BYTES: usize = 32 * 1024;
const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 16 * 1024;
const PAGE_BYTES: usize = 4096;

impl Call {
    /// Makes the call.
    ///
    /// # Errors
    /// Those of the operating system: what cannot be done here is a load that is not the one described.
    pub(crate) fn make(self) -> io::Result<()> {
        match self {
            Self::Sleep { us } => clock::sleep(Duration::from_micros(us)),
            Self::File => read("/proc/self/exe", FILE_BYTES)?,
            Self::Urandom => read("/dev/urandom", RANDOM_BYTES)?,
            Self::Exec => {
                Command::new("/bin/true").status()?;
            }
            Self::Allocate => {
                let blocks: Vec<_> = (0..BLOCKS).map(|_| touched()).collect();
                hint::black_box(blocks);
            }
        }
        Ok(())
    }
}

fn touched() -> Vec<u8> {
    // The allocator hands out zeroed memory untouched.
    let mut block = vec![0_u8; BLOCK_BYTES];
    for page in block.chunks_mut(PAGE_BYTES) {
        page[0] = 1;
    }
    block
}

fn read(path: &str, count: usize) -> io::Result<()> {
    let mut buffer = vec![0; count];
    File::open(path)?.read_exact(&mut buffer)?;
    hint::black_box(buffer);
    Ok(())
}

/// A lock on which the kernel thread sleeps. Unlike a guard of `std::sync::Mutex`, its ownership may go
/// along with a task to another thread.
#[derive(Debug, Default)]
pub(crate) struct BlockingLock {
    is_held: Mutex<bool>,
    is_free: Condvar,
}

impl BlockingLock {
    pub(crate) fn lock(&self) {
        let held = self.is_held.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.is_free.wait_while(held, |is_held| *is_held);
        *wait.unwrap_or_else(PoisonError::into_inner) = true;
    }

    pub(crate) fn unlock(&self) {
        *self.is_held.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.is_free.notify_one();
    }
}
