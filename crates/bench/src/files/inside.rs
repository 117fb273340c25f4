//! The process whose files are measured.

use std::io::{self, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, process, thread};

use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use super::{FileFigures, FileLoad, FileLoadPlan};
use crate::clock::{self, nanoseconds};
use crate::compute::busy;
use crate::error::Failure;
use crate::host::Usage;
use crate::process::print_result;
use crate::schedulers::System;
use crate::system::AsyncSystem;
use crate::system::tokio::TokioMultiThread;
use crate::system::vigie::VigieHybrid;

const BLOCK: usize = 4096;

/// Blocks of the file that is read.
const BLOCKS: u64 = 16_384;

/// The most times that a task keeps.
const KEPT_MAX: usize = 2_000_000;

/// Files as programs of a runtime use them.
trait FileSystem: AsyncSystem {
    type File: Send + 'static;

    fn open(path: &Path, appends: bool) -> impl Future<Output = io::Result<Self::File>> + Send;

    fn read_at(
        file: &mut Self::File,
        place: u64,
        bytes: &mut [u8],
    ) -> impl Future<Output = io::Result<()>> + Send;

    fn append(file: &mut Self::File, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;
}

/// Implements [`FileSystem`] by a module of tokio's shape.
macro_rules! file_system {
    ($system:ty, $fs:path) => {
        impl FileSystem for $system {
            type File = <Self as Module>::File;

            async fn open(path: &Path, appends: bool) -> io::Result<Self::File> {
                use $fs as fs;
                if appends {
                    fs::OpenOptions::new().append(true).create(true).open(path).await
                } else {
                    fs::File::open(path).await
                }
            }

            async fn read_at(
                file: &mut Self::File,
                place: u64,
                bytes: &mut [u8],
            ) -> io::Result<()> {
                file.seek(SeekFrom::Start(place)).await?;
                file.read_exact(bytes).await.map(drop)
            }

            async fn append(file: &mut Self::File, bytes: &[u8]) -> io::Result<()> {
                file.write_all(bytes).await?;
                file.sync_data().await
            }
        }
    };
}

/// The module's type of files.
trait Module {
    type File;
}

impl Module for VigieHybrid {
    type File = vigie_runtime::fs::File;
}

impl Module for TokioMultiThread {
    type File = tokio::fs::File;
}

file_system!(VigieHybrid, vigie_runtime::fs);
file_system!(TokioMultiThread, tokio::fs);

/// Measures in this process, and prints it for the parent.
pub(crate) fn run_here(plan: &FileLoadPlan) -> Result<(), Failure> {
    let figures = match plan.system {
        System::Vigie => run::<VigieHybrid>(plan.clone()),
        System::Tokio => run::<TokioMultiThread>(plan.clone()),
        other => Err(Failure::unsupported(other, "its files are not measured")),
    }?;
    print_result(&figures);
    Ok(())
}

/// A file that is removed in the end.
struct Temporary(PathBuf);

impl Temporary {
    /// Fills it, unless it is to be appended to.
    fn create(folder: &Path, blocks: u64) -> io::Result<Self> {
        let path = folder.join(format!("vigie-bench-{}", process::id()));
        let mut file = fs::File::create(&path)?;
        let this = Self(path);
        for block in 0..blocks {
            file.write_all(&[block.to_le_bytes()[0]; BLOCK])?;
        }
        // Else the kernel writes it back during the measurement.
        file.sync_all()?;
        Ok(this)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn run<S: FileSystem>(plan: FileLoadPlan) -> Result<FileFigures, Failure> {
    let appends = plan.load == FileLoad::Append;
    let file = Temporary::create(&plan.folder, if appends { 0 } else { BLOCKS });
    let file = file.map_err(Failure::io("creating the file"))?;
    let system = S::start(plan.workers)?;
    system.block_on(async move {
        let is_over = Arc::new(AtomicBool::new(false));
        if plan.load == FileLoad::Hogs {
            for _ in 0..10 {
                let is_over = Arc::clone(&is_over);
                S::spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        busy(Duration::from_millis(1));
                    }
                });
            }
        }
        let tasks = if plan.load == FileLoad::Read32 { 32 } else { 1 };
        let all = Arc::new(Mutex::new((Vec::new(), tasks)));
        let (begin, usage) = (clock::now(), Usage::of_this_process());
        for task in 0..tasks {
            let (path, all) = (file.0.clone(), Arc::clone(&all));
            let (time, seed) = (plan.time, plan.seed ^ task);
            S::spawn(async move {
                let times = operate::<S>(&path, appends, time, seed).await;
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                match times {
                    Ok(times) => all.0.extend(times),
                    Err(error) => eprintln!("files: {error}"),
                }
                all.1 -= 1;
            });
        }
        if plan.load == FileLoad::Hogs {
            // From a thread: nothing else gets through where the hogs have all workers.
            let (is_over, time) = (Arc::clone(&is_over), plan.time);
            thread::spawn(move || {
                clock::sleep(time + Duration::from_millis(100));
                is_over.store(true, Ordering::Relaxed);
            });
        }
        let left = || all.lock().unwrap_or_else(PoisonError::into_inner).1;
        while left() > 0 && begin.elapsed() < plan.time * 4 {
            S::sleep(Duration::from_millis(20)).await;
        }
        let spent = Usage::of_this_process().since(usage);
        let times_ns = std::mem::take(&mut all.lock().unwrap_or_else(PoisonError::into_inner).0);
        Ok(FileFigures { times_ns, cpu_ns: spent.cpu_ns, elapsed_ns: spent.at_ns })
    })
}

/// Reads at random places, or appends, for `time`; returns how long each operation took.
async fn operate<S: FileSystem>(
    path: &Path,
    appends: bool,
    time: Duration,
    seed: u64,
) -> io::Result<Vec<u64>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut file = S::open(path, appends).await?;
    let (mut bytes, mut times) = ([7; BLOCK], Vec::new());
    let begin = clock::now();
    while begin.elapsed() < time && times.len() < KEPT_MAX {
        let before = clock::now();
        if appends {
            S::append(&mut file, &bytes).await?;
        } else {
            let block = random.u64(..BLOCKS);
            S::read_at(&mut file, block * BLOCK as u64, &mut bytes).await?;
            if bytes[BLOCK - 1] != block.to_le_bytes()[0] {
                return Err(io::Error::other("a block has the bytes of another"));
            }
        }
        times.push(nanoseconds(before.elapsed()));
    }
    Ok(times)
}
