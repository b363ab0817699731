//! What a server under test can do and what not, and why not.

use std::fmt;

use firstflight_tls::Version;

use crate::{Certificate, Group, Http, Kind, RequestedConnection, Size, Transport, Workload};

/// One thing that a server can or cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ability {
    /// To answer PING by PONG, straight on TLS.
    PingPong,
    /// To speak a TLS version.
    Speaks(Version),
    /// To resume a session of a version.
    Resumes(Version),
    /// To take early data (RFC 8446 section 2.3).
    EarlyData,
    /// To take data in the SYN (RFC 7413).
    FastOpen,
    /// To speak HTTP/2.
    Http2,
    /// To speak HTTP/3, over QUIC.
    Http3,
    /// To resume a session over QUIC.
    ResumesQuic,
    /// To take early data over QUIC (RFC 9001 section 4.6).
    EarlyDataQuic,
    /// To refuse early data over QUIC whose ticket claims to be much older than it is (RFC 8446
    /// section 8.3).
    FreshnessQuic,
    /// To give address tokens (RFC 9000 section 8.1.3).
    AddressTokens,
    /// To serve the page of a size.
    Serves(Size),
    /// To exchange keys in a group.
    Exchanges(Group),
    /// To present a certificate of a kind.
    Presents(Certificate),
    /// To serve several connections at a time. Without, a connection waits for the one before,
    /// so that nothing may be measured side by side.
    SideBySide,
    /// To log each request that it executes, so that replays can be counted.
    Counts,
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PingPong => f.write_str("ping-pong"),
            Self::Speaks(version) => write!(f, "{version}"),
            Self::Resumes(version) => write!(f, "resumption in {version}"),
            Self::EarlyData => f.write_str("early data"),
            Self::FastOpen => f.write_str("TCP Fast Open"),
            Self::Http2 => f.write_str("HTTP/2"),
            Self::Http3 => f.write_str("HTTP/3"),
            Self::ResumesQuic => f.write_str("resumption over QUIC"),
            Self::EarlyDataQuic => f.write_str("early data over QUIC"),
            Self::FreshnessQuic => f.write_str("refusal by a ticket's age over QUIC"),
            Self::AddressTokens => f.write_str("address tokens"),
            Self::Serves(size) => write!(f, "answers of {size}"),
            Self::Exchanges(group) => write!(f, "{group}"),
            Self::Presents(certificate) => write!(f, "{certificate} certificates"),
            Self::SideBySide => f.write_str("several connections at a time"),
            Self::Counts => f.write_str("counting of replays"),
        }
    }
}

/// The abilities that a connection takes.
pub(crate) fn needs(asked: &RequestedConnection) -> Vec<Ability> {
    let mut needs = vec![Ability::Exchanges(asked.group), Ability::Presents(asked.certificate)];
    match asked.workload {
        Workload::PingPong => {
            needs.push(Ability::PingPong);
            needs.extend(asked.over_quic().then_some(Ability::Http3));
        }
        Workload::Get => {
            needs.push(Ability::Serves(asked.size));
            needs.extend(match asked.http {
                Http::One => None,
                Http::Two => Some(Ability::Http2),
                Http::Three => Some(Ability::Http3),
            });
        }
    }
    let (resumes, early) = match asked.transport {
        Transport::Tcp => {
            needs.insert(0, Ability::Speaks(asked.version));
            (Ability::Resumes(asked.version), Ability::EarlyData)
        }
        Transport::Quic => (Ability::ResumesQuic, Ability::EarlyDataQuic),
    };
    needs.extend((asked.kind != Kind::Full).then_some(resumes));
    needs.extend(asked.kind.is_early().then_some(early));
    let refused = asked.kind == Kind::Refused && asked.over_quic();
    needs.extend(refused.then_some(Ability::FreshnessQuic));
    needs.extend(asked.tfo.then_some(Ability::FastOpen));
    needs.extend(asked.token.then_some(Ability::AddressTokens));
    needs
}

/// An ability that is missing, and why.
pub type MissingAbility = (Ability, &'static str);

/// What a server can do: everything but its lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    lacks: Vec<MissingAbility>,
}

impl Abilities {
    /// Everything but these.
    pub fn without(lacks: &[MissingAbility]) -> Self {
        Self { lacks: lacks.to_vec() }
    }

    /// Whether it can.
    pub fn can(&self, ability: Ability) -> bool {
        self.why_not(ability).is_none()
    }

    /// Why it cannot; `None`: it can.
    pub fn why_not(&self, ability: Ability) -> Option<&'static str> {
        self.lacks.iter().find(|(lack, _)| *lack == ability).map(|(_, why)| *why)
    }

    /// Why it cannot do what a cell asks; `None`: it can.
    pub fn cannot(&self, asked: &RequestedConnection) -> Option<&'static str> {
        self.lack(asked).map(|(_, why)| why)
    }

    /// The first thing that a cell asks and it cannot do.
    pub fn lack(&self, asked: &RequestedConnection) -> Option<MissingAbility> {
        needs(asked).into_iter().find_map(|need| Some((need, self.why_not(need)?)))
    }

    /// All that is missing, with the reasons.
    pub fn lacks(&self) -> &[MissingAbility] {
        &self.lacks
    }

    /// Settles by a trial whether it can: a trial outweighs what was known beforehand, which then
    /// only explains what the trial found.
    pub(super) fn settle(&mut self, ability: Ability, can: bool, known: &Self) {
        self.lacks.retain(|(lack, _)| *lack != ability);
        if !can {
            self.lacks.push((ability, known.why_not(ability).unwrap_or(found(ability))));
        }
    }
}

/// The reason where a trial is all that is known.
fn found(ability: Ability) -> &'static str {
    match ability {
        Ability::Exchanges(_) => "its TLS library does not have it, as a trial showed",
        Ability::Presents(_) => "it did not present it when it was tried",
        _ => "it did not do it when it was tried",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: RequestedConnection = RequestedConnection {
        workload: Workload::Get,
        transport: Transport::Tcp,
        version: Version::Tls13,
        kind: Kind::ZeroRtt,
        tfo: true,
        token: false,
        http: Http::Two,
        size: Size::TenKib,
        group: Group::P256,
        certificate: Certificate::Rsa2048,
    };

    #[test]
    fn each_need_of_a_cell_can_be_missing() {
        assert_eq!(Abilities::default().cannot(&ASKED), None);
        for need in needs(&ASKED) {
            assert_eq!(Abilities::without(&[(need, "because")]).cannot(&ASKED), Some("because"));
        }
        assert_eq!(needs(&ASKED).len(), 8);
        let over_quic = RequestedConnection {
            transport: Transport::Quic,
            tfo: false,
            token: true,
            http: Http::Three,
            ..ASKED
        };
        let tcp_only = [Ability::EarlyData, Ability::Resumes(Version::Tls13), Ability::FastOpen];
        assert!(tcp_only.iter().all(|need| !needs(&over_quic).contains(need)));
        for need in needs(&over_quic) {
            assert_eq!(
                Abilities::without(&[(need, "because")]).cannot(&over_quic),
                Some("because")
            );
        }
        assert_eq!(needs(&over_quic).len(), 7);
        let refused = RequestedConnection { kind: Kind::Refused, ..over_quic };
        assert!(needs(&refused).contains(&Ability::FreshnessQuic));
    }

    #[test]
    fn what_is_not_asked_may_be_missing() {
        let can = Abilities::without(&[
            (Ability::PingPong, "no"),
            (Ability::Serves(Size::OneMib), "no"),
            (Ability::Exchanges(Group::X25519), "no"),
            (Ability::Presents(Certificate::EcdsaP256), "no"),
            (Ability::Resumes(Version::Tls12), "no"),
            (Ability::Counts, "no"),
        ]);
        assert_eq!(can.cannot(&ASKED), None);
        let ping = RequestedConnection { workload: Workload::PingPong, ..ASKED };
        assert_eq!(can.cannot(&ping), Some("no"));
        let without_http = Abilities::without(&[(Ability::Http2, "no")]);
        assert_eq!(without_http.cannot(&ping), None, "PING is no HTTP");
        let full = RequestedConnection { kind: Kind::Full, version: Version::Tls12, ..ASKED };
        assert_eq!(can.cannot(&full), None);
    }

    #[test]
    fn a_trial_outweighs_what_was_known_and_keeps_its_words() {
        let known = Abilities::without(&[(Ability::EarlyData, "its library has none")]);
        let mut tried = known.clone();
        tried.settle(Ability::EarlyData, true, &known);
        assert!(tried.can(Ability::EarlyData));
        tried.settle(Ability::EarlyData, false, &known);
        tried.settle(Ability::Http2, false, &known);
        assert_eq!(tried.why_not(Ability::EarlyData), Some("its library has none"));
        assert_eq!(tried.why_not(Ability::Http2), Some(found(Ability::Http2)));
    }
}
