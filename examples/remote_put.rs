//! One process writes into the memory of another without its help: RDMA over Virtual Interfaces.
//!
//! ```text
//! cargo build -p vigie --features cli-run --bins --examples
//! target/debug/vigie-run -n 2 target/debug/examples/remote_put
//! ```
//!
//! Rank 1 registers 4 KiB of memory and tells rank 0 its key with the connection. Rank 0 writes into it, with immediate
//! data, which ends a wait of rank 1; then it tries to write beyond the end, and is told why that is not done.

use std::{error::Error, io::IoSlice, time::Duration};

use vigie::detect::Server;
use vigie::via::vi::{
    Address, Connect, CqId, Data, MemoryAttributes, NicEvent, Operation, ProtectionTag,
    ReceiveDescriptor, Reliability, RemoteKey, RemoteSegment, SendDescriptor, ViAttributes,
};
use vigie::via::{Nic, shm::Shm, vi::Provider, world::World};
use vigie::{Flavor, Instant, Runtime};

const AREA_BYTES: usize = 4096;
const TEXT: &[u8] = b"rank 0 was here";

fn main() -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(30);
    Runtime::builder().flavor(Flavor::UserLevel).build()?.block_on(async {
        let world = World::join(deadline).await?;
        assert_eq!(world.size(), 2, "start two of me: vigie-run -n 2 remote_put");
        let nic = Nic::new(&Server::current()?, Shm::open()?)?;
        nic.with(|nic| nic.listen(b"remote_put"))?;
        let address = nic.with(|nic| nic.address());
        let addresses = world.all_gather("address", &address.0, deadline).await?;
        let (tag, cq) = nic.with(|nic| (nic.create_tag(), nic.create_cq()));
        let cq = cq?;
        let vi = nic.with(|nic| nic.create_vi(attributes(tag, cq)))?;
        if world.rank() == 1 {
            let rights = MemoryAttributes { tag, allows_write: true, allows_read: false };
            let region = nic.with(|nic| nic.allocate(AREA_BYTES, rights))?;
            // A write with immediate data consumes a descriptor; its data does not need one.
            nic.with(|nic| nic.post_receive(vi, &ReceiveDescriptor { cookie: 0, segments: &[] }))?;
            let NicEvent::Requested { request, .. } = nic.next_event().await? else {
                return Err("rank 0 has not asked for a connection".into());
            };
            nic.accept(request, vi, &region.key.0.to_le_bytes()).await?;
            let said = nic.next_completion(cq).await?.immediate;
            let text = String::from_utf8(region.memory.read_to_vec(0, TEXT.len())?)?;
            // Waiting for events keeps the NIC working.
            vigie::spawn(async move { while nic.next_event().await.is_ok() {} }).detach();
            println!("rank 1: told {said:?}, and my memory holds {text:?}");
        } else {
            let peer = Address(addresses.into_iter().nth(1).flatten().ok_or("rank 1 has gone")?);
            let key = nic.connect(Connect::new(vi, &peer, b"remote_put", deadline)).await?;
            let key = RemoteKey(u64::from_le_bytes(key.as_slice().try_into()?));
            for offset in [0, AREA_BYTES as u64 - 1] {
                let descriptor = SendDescriptor {
                    operation: Operation::RdmaWrite,
                    cookie: 0,
                    immediate: (offset == 0).then_some(7),
                    is_signaled: true,
                    remote: Some(RemoteSegment { key, offset }),
                    data: Data::Inline(&[IoSlice::new(TEXT)]),
                };
                nic.post(|nic| nic.post_send(vi, &descriptor))?;
                println!("rank 0: at {offset}: {}", nic.next_completion(cq).await?.status);
            }
        }
        world.barrier(deadline).await?;
        world.leave(deadline).await?;
        Ok(())
    })
}

/// A VI whose peer may write this side's memory of the same protection tag.
fn attributes(tag: ProtectionTag, cq: CqId) -> ViAttributes {
    ViAttributes {
        // A write completes when it is in the peer's memory, and reports an error if it was not allowed.
        reliability: Reliability::ReliableReception,
        tag,
        send_cq: Some(cq),
        receive_cq: Some(cq),
        allows_write: true,
        allows_read: false,
    }
}
