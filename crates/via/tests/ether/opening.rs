//! Errors that keep a NIC from being opened.

use vigie_via::{
    ether::{Ether, EtherError, MTU_MIN},
    link::{Capability, EtherType, OpenError},
    software_nic::Wire,
};

use crate::{
    kit::namespace::{inside, near},
    nics::secret,
    veth::with_veth,
};

/// Goal: a missing capability is named. Method: open NICs without any capability.
#[test]
fn a_missing_right_is_named() {
    inside("opening::a_missing_right_is_named", &[&["-U"]], || {
        let error = Ether::builder("lo").open(secret()).expect_err("no right");
        let named = OpenError::MissingCapability {
            what: "opening an AF_PACKET socket",
            capability: Capability::NetRaw,
        };
        assert_eq!(error.to_string(), named.to_string());
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    });
}

/// Goal: wrong settings cause errors that say what to do. Method: an interface that does not exist,
/// frames that are too short, all protocols.
#[test]
fn wrong_settings_are_refused() {
    with_veth("opening::wrong_settings_are_refused", |_| {
        let error = Ether::builder("no such").open(secret()).expect_err("no interface");
        assert!(matches!(error, EtherError::Open(OpenError::NoInterface { .. })), "{error}");
        let error = Ether::builder("v0").ether_type(EtherType::ALL).open(secret());
        assert!(matches!(error, Err(EtherError::AllProtocols)));
        near(&format!("ip link set v0 mtu {}", MTU_MIN - 1));
        let error = Ether::builder("v0").open(secret()).expect_err("too short");
        assert!(matches!(error, EtherError::MtuTooSmall { mtu: 1207, .. }), "{error}");
        near(&format!("ip link set v0 mtu {MTU_MIN}"));
        Ether::builder("v0").open(secret()).expect("just long enough");
    });
}

/// Goal: a port is claimed once per interface and protocol, and is free again afterwards. Method: claim
/// one again and again.
#[test]
fn a_port_is_taken_once() {
    with_veth("opening::a_port_is_taken_once", |_| {
        let seventh = || Ether::builder("v0").port(7);
        let nic = seventh().open(secret()).expect("free");
        assert_eq!(nic.wire().path().port, 7);
        let error = seventh().open(secret()).expect_err("taken");
        assert!(matches!(error, EtherError::PortTaken { port: 7, .. }), "{error}");
        let other = seventh().ether_type(EtherType::EXPERIMENTAL_1).open(secret());
        other.expect("of another protocol");
        drop(nic);
        seventh().open(secret()).expect("free again");
    });
}
