use super::*;

fn identity() -> Identity {
    Identity { id: [1; 16], secret: [2; 32] }
}

fn requests() -> Vec<HubRequest> {
    let longest = "k".repeat(KEY_BYTES_MAX);
    vec![
        HubRequest::Hello { version: VERSION },
        HubRequest::Put { key: "a".to_owned(), value: Vec::new() },
        HubRequest::Put { key: longest.clone(), value: vec![0xff; VALUE_BYTES_MAX] },
        HubRequest::Get { rank: None, key: "address".to_owned() },
        HubRequest::Get { rank: Some(Rank(7)), key: longest },
        HubRequest::Enter { round: u32::MAX },
        HubRequest::Leave,
    ]
}

fn replies() -> Vec<HubReply> {
    let (rank, key) = (Rank(3), "a.b-c_d:e".to_owned());
    vec![
        HubReply::Welcome(Membership { rank, size: 4, identity: identity() }),
        HubReply::Value { rank, key: key.clone(), value: vec![7; VALUE_BYTES_MAX] },
        HubReply::Absent { rank, key },
        HubReply::Passed { round: 1 },
        HubReply::Event(WorldEvent::Left { rank }),
        HubReply::Event(WorldEvent::Expelled { rank }),
        HubReply::Event(WorldEvent::Ended { rank, ending: RankExit::Exited(-1) }),
        HubReply::Event(WorldEvent::Ended { rank, ending: RankExit::Killed(9) }),
        HubReply::Expelled { why: "é".repeat(TEXT_BYTES_MAX / 2) },
        HubReply::Missing { count: 1000, ranks: vec![rank; MISSING_MAX] },
    ]
}

fn frames(bytes: &[u8]) -> Result<Vec<Vec<u8>>, WireError> {
    let mut decoder = Decoder::new();
    decoder.feed(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        frames.push(frame.to_vec());
    }
    Ok(frames)
}

/// Goal: what is written is read again. Method: each message with extreme fields.
#[test]
fn round_trip() {
    for request in requests() {
        let frames = frames(&request.encode()).unwrap();
        assert_eq!(frames.len(), 1);
        assert_eq!(HubRequest::decode(&frames[0]), Ok(request));
    }
    for reply in replies() {
        let frames = frames(&reply.encode()).unwrap();
        assert_eq!(frames.len(), 1);
        assert_eq!(HubReply::decode(&frames[0]), Ok(reply));
    }
}

/// Goal: a stream may be cut anywhere. Method: all messages in one stream, byte by byte and at once.
#[test]
fn stream_cut_anywhere() {
    let stream = requests().iter().flat_map(HubRequest::encode).collect::<Vec<_>>();
    let mut decoder = Decoder::new();
    let mut found = Vec::new();
    for byte in &stream {
        decoder.feed(&[*byte]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            found.push(HubRequest::decode(frame).unwrap());
        }
    }
    assert_eq!(found, requests());
    assert_eq!(frames(&stream).unwrap().len(), requests().len());
}

/// Goal: every frame that is cut short or too long is refused. Method: each prefix of each message, and each
/// message with one byte more.
#[test]
fn truncated_and_trailing() {
    for bytes in requests().iter().map(HubRequest::encode) {
        let frame = &bytes[LENGTH_BYTES..];
        for end in 0..frame.len() {
            assert_eq!(HubRequest::decode(&frame[..end]), Err(WireError::Truncated), "{frame:?}");
        }
        let longer = [frame, &[0]].concat();
        assert_eq!(HubRequest::decode(&longer), Err(WireError::TrailingBytes { bytes: 1 }));
    }
    for bytes in replies().iter().map(HubReply::encode) {
        let frame = &bytes[LENGTH_BYTES..];
        for end in 0..frame.len() {
            assert_eq!(HubReply::decode(&frame[..end]), Err(WireError::Truncated), "{frame:?}");
        }
        assert!(HubReply::decode(&[frame, &[0]].concat()).is_err());
    }
}

/// Goal: fields out of range are refused, each with its name. Method: one message for each.
#[test]
fn bad_fields() {
    let put = |key: &[u8], value: &[u8]| {
        let bytes = FrameBuilder::new(2).bytes(key).bytes(value).done();
        HubRequest::decode(&bytes[LENGTH_BYTES..])
    };
    let bad = |field| Err(WireError::BadField { field });
    for key in [&b""[..], b"a b", b"a=b", b"a\n", b"\xff\xfe", &[b'k'; KEY_BYTES_MAX + 1]] {
        assert_eq!(put(key, b""), bad("key"), "{key:?}");
    }
    assert_eq!(put(b"k", &[0; VALUE_BYTES_MAX + 1]), bad("value"));
    let reply = |frame: FrameBuilder| HubReply::decode(&frame.done()[LENGTH_BYTES..]);
    let welcome = |version: u16, rank, size| {
        reply(FrameBuilder::new(65).u16(version).u32(rank).u32(size).raw(&[0; 48]))
    };
    assert!(welcome(VERSION, 0, 1).is_ok());
    assert_eq!(welcome(VERSION + 1, 0, 1), Err(WireError::BadField { field: "version" }));
    assert_eq!(welcome(VERSION, 1, 1), Err(WireError::BadField { field: "rank" }));
    assert_eq!(welcome(VERSION, 0, 0), Err(WireError::BadField { field: "rank" }));
    let text = reply(FrameBuilder::new(73).bytes(b"\xff"));
    assert_eq!(text, Err(WireError::BadField { field: "text" }));
    for kind in [0, 6, 64, 75, 255] {
        assert_eq!(HubRequest::decode(&[kind]), Err(WireError::UnknownKind { kind }));
        assert_eq!(HubReply::decode(&[kind]), Err(WireError::UnknownKind { kind }));
    }
}

/// Goal: a length out of range ends the stream before any of its bytes are collected. Method: the borders.
#[test]
fn bad_lengths() {
    for bytes in [0, 601, 0x4745_5420, u32::MAX] {
        let stream = [&bytes.to_le_bytes()[..], &[0; 8]].concat();
        assert_eq!(frames(&stream), Err(WireError::FrameLength { bytes }));
    }
    // The longest frame, of which only a part has arrived.
    assert_eq!(frames(&[88, 2, 0, 0, 1]), Ok(Vec::new()));
}

/// Goal: no bytes make a decoder panic, and what it accepts is what would have been written. Method:
/// random frames, and messages with random changes.
#[test]
fn random_bytes() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut accepted = 0;
    for round in 0..200_000 {
        let all = [requests().iter().map(HubRequest::encode).collect(), Vec::new()].concat();
        let mut frame: Vec<u8> = if round % 2 == 0 {
            (0..next() % 24).map(|_| next().to_le_bytes()[0]).collect()
        } else {
            all[usize::try_from(next() % 7).unwrap()][LENGTH_BYTES..].to_vec()
        };
        if !frame.is_empty() {
            let place = usize::try_from(next()).unwrap() % frame.len();
            frame[place] ^= next().to_le_bytes()[0];
        }
        if let Ok(request) = HubRequest::decode(&frame) {
            accepted += 1;
            assert_eq!(request.encode()[LENGTH_BYTES..], frame);
        }
        if let Ok(reply) = HubReply::decode(&frame) {
            assert_eq!(reply.encode()[LENGTH_BYTES..], frame);
        }
        drop(frames(&frame));
    }
    assert!(accepted > 1000, "{accepted}: the changes leave nothing to accept");
}
