use super::{
    handshake::{ANSWER_BYTES, Challenger, HandshakeVerdict},
    seal::Seal,
    *,
};
use crate::world::wire::{Decoder, HubRequest, VERSION, WireError};

fn secret(byte: u8) -> Secret {
    Secret::new([byte; 16])
}

fn caller(secret: Secret, rank: u32, size: u32) -> ClientHandshake {
    ClientHandshake::new(secret, Rank(rank), size, [9; 16])
}

/// Runs both sides of a handshake, with one secret each. Returns each side's verdict.
fn meet(
    (challenger, caller): (Secret, ClientHandshake),
    size: u32,
    admit: Result<(), JoinRefusal>,
) -> (HandshakeVerdict, Result<Session, JoinRefusal>) {
    let one = Challenger::new([8; 16]);
    let (answer, answered) = caller.answer(&one.challenge()).unwrap();
    let verdict = one.judge(&answer, &challenger, size, |_| admit);
    let (HandshakeVerdict::Admitted { bytes, .. }
    | HandshakeVerdict::Refused { bytes, .. }
    | HandshakeVerdict::Stranger { bytes }) = &verdict;
    let read = answered.read(bytes);
    (verdict, read)
}

/// Goal: a rank that knows the secret is let in, both sides with the same keys; a refused one learns why. Method:
/// each case.
#[test]
fn handshakes() {
    let (verdict, read) = meet((secret(1), caller(secret(1), 2, 4)), 4, Ok(()));
    let HandshakeVerdict::Admitted { rank: Rank(2), session, .. } = verdict else {
        panic!("{verdict:?}")
    };
    assert!(read == Ok(session));
    for (caller, admit, expected) in [
        (caller(secret(2), 2, 4), Ok(()), JoinRefusal::WrongSecret),
        (caller(secret(1), 2, 5), Ok(()), JoinRefusal::WrongSize),
        (caller(secret(1), 4, 4), Ok(()), JoinRefusal::NoSuchRank),
        (caller(secret(1), 1, 4), Err(JoinRefusal::Taken), JoinRefusal::Taken),
        (caller(secret(1), 1, 4), Err(JoinRefusal::TooLate), JoinRefusal::TooLate),
    ] {
        let (verdict, read) = meet((secret(1), caller), 4, admit);
        assert!(!matches!(verdict, HandshakeVerdict::Admitted { .. }));
        assert_eq!(read.unwrap_err(), expected);
        assert_eq!(
            matches!(verdict, HandshakeVerdict::Stranger { .. }),
            expected == JoinRefusal::WrongSecret
        );
    }
}

/// Goal: no bit of a handshake can be changed, and no message reused in another one. Method: flip each bit;
/// replay.
#[test]
fn forged_handshakes() {
    let one = Challenger::new([8; 16]);
    let (answer, answered) = caller(secret(1), 2, 4).answer(&one.challenge()).unwrap();
    let judge = |one: &Challenger, answer: &[u8; ANSWER_BYTES]| {
        one.judge(answer, &secret(1), 4, |_| Ok(()))
    };
    for bit in 0..8 * ANSWER_BYTES {
        let mut changed = answer;
        changed[bit / 8] ^= 1 << (bit % 8);
        let verdict = judge(&one, &changed);
        assert!(matches!(verdict, HandshakeVerdict::Stranger { .. }), "bit {bit}: {verdict:?}");
    }
    let later = Challenger::new([7; 16]);
    assert!(matches!(judge(&later, &answer), HandshakeVerdict::Stranger { .. }));
    let HandshakeVerdict::Admitted { bytes, .. } = judge(&one, &answer) else {
        panic!("it was right")
    };
    for bit in 0..8 * VERDICT_BYTES {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        let error = answered.read(&changed).unwrap_err();
        assert!(
            matches!(error, JoinRefusal::Impostor | JoinRefusal::WrongSecret),
            "bit {bit}: {error}"
        );
    }
    // A challenge is not an answer, and anything but a challenge is not answered.
    assert!(caller(secret(1), 2, 4).answer(&[0; CHALLENGE_BYTES]).is_none());
    for seed in 0..1000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes = std::array::from_fn(|_| random.u8(..));
        assert!(matches!(judge(&one, &bytes), HandshakeVerdict::Stranger { .. }));
    }
}

/// Goal: sealed frames arrive, and nothing else does. Method: bytes one by one; then a bit flipped anywhere, a
/// frame repeated, left out, or reflected.
#[test]
fn seals() {
    let (_, read) = meet((secret(1), caller(secret(1), 2, 4)), 4, Ok(()));
    let session = read.unwrap();
    let mut member = Seal::of_member(&session);
    let sealed = |seal: &mut Seal, round| {
        let frame = HubRequest::Enter { round }.encode();
        [&frame[..], &seal.tag(&frame)].concat()
    };
    let (first, second) = (sealed(&mut member, 1), sealed(&mut member, 2));
    let open = |seal: &mut Seal, bytes: &[u8]| {
        let (mut decoder, mut found) = (Decoder::new(), Vec::new());
        for byte in bytes {
            decoder.feed(&[*byte]);
            while let Some(frame) = seal.open(&mut decoder)? {
                found.push(HubRequest::decode(frame)?);
            }
        }
        Ok::<_, WireError>(found)
    };
    let both = [&first[..], &second].concat();
    let expected = [1, 2].map(|round| HubRequest::Enter { round });
    assert_eq!(open(&mut Seal::of_hub(&session), &both).unwrap(), expected);
    for bit in 0..8 * first.len() {
        let mut changed = first.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let found = open(&mut Seal::of_hub(&session), &changed);
        // A longer frame is waited for.
        assert!(found.as_ref().is_err() || found == Ok(Vec::new()), "bit {bit}: {found:?}");
    }
    let repeated = [&first[..], &first].concat();
    assert_eq!(open(&mut Seal::of_hub(&session), &repeated), Err(WireError::Forged));
    assert_eq!(open(&mut Seal::of_hub(&session), &second), Err(WireError::Forged));
    assert_eq!(open(&mut Seal::of_member(&session), &first), Err(WireError::Forged));
    let hello = HubRequest::Hello { version: VERSION }.encode();
    assert_eq!(
        open(&mut Seal::of_hub(&session), &[&hello[..], &[0; 16]].concat()),
        Err(WireError::Forged)
    );
}

/// Goal: secrets are read as they are written to files, and nothing else is taken for one. Method: cases.
#[test]
fn secrets() {
    let text = "000102030405060708090a0b0c0D0E0F";
    let expected = Secret::new(std::array::from_fn(|at| u8::try_from(at).unwrap()));
    assert!(parse_secret(text) == Some(expected.clone()));
    assert!(parse_secret(&format!("  {text}\n")) == Some(expected.clone()));
    for text in ["", &text[1..], &format!("{text}0"), &text.replace('0', "x"), &"é".repeat(16)] {
        assert!(parse_secret(text).is_none(), "{text}");
    }
    let one = identity_secret(&expected, &[1; 16]);
    assert_ne!(one, identity_secret(&expected, &[2; 16]));
    assert_ne!(one, identity_secret(&secret(1), &[1; 16]));
    assert_ne!(one[..16], one[16..]);
}

/// Goal: a rank whose rendezvous is not there waits until its deadline, and says which address it called. Method:
/// a port without a listener, and one at which something else listens.
#[test]
fn nobody_answers() {
    let host = Server::spawn_thread().expect("a thread");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [address, silent.local_addr().unwrap()] {
        let place = TcpRendezvous { address, rank: Rank(0), size: 2, secret: secret(1) };
        let deadline = host.server().now() + Duration::from_millis(100);
        let error = runtime.block_on(join(host.server(), place, deadline)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, WorldError::TimedOut { .. }), "{text}");
        assert!(text.contains(&address.to_string()), "{text}");
    }
}
