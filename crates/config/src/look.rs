//! The files that settings name: whether they are there and good.

use std::fs::{self, File};
use std::path::Path;

use firstflight_tickets::{KeyEncryption, KeyFile, SecretFileError, read_secret_file};
use firstflight_tls::{CipherPolicy, Connector, ConnectorConfig, Identity, Trust};

use crate::{Action, CertificateSource, Content, KeySource, ServerConfig, SettingError, Site};

impl ServerConfig {
    /// What is wrong with the files that it names, and with lists of ciphers. The store is not
    /// asked.
    pub fn look_at_files(&self) -> Vec<SettingError> {
        let mut misfits: Vec<_> = [
            certificate(&self.certificate).map_err(|misfit| misfit.under("tls")),
            self.cipher_lists().map_err(|misfit| misfit.under("tls")),
            self.ticket_keys().map_err(|misfit| misfit.under("tickets")),
            self.token().map_err(|misfit| misfit.under("admin")),
            self.store_authorities().map_err(|misfit| misfit.under("store")),
            self.acme_files().map_err(|misfit| misfit.under("acme")),
        ]
        .into_iter()
        .filter_map(Result::err)
        .collect();
        if let Content::Sites(sites) = &self.content {
            for (at, site) in sites.sites.iter().enumerate() {
                misfits.extend(
                    site_files(site).into_iter().map(|misfit| misfit.under_index("site", at)),
                );
            }
            for (name, pool) in &sites.upstreams {
                let wrong = |reason| SettingError::new("ca", reason).under(name.clone());
                let read = pool.ca.as_deref().map_or(Ok(()), authorities);
                misfits.extend(read.err().map(|reason| wrong(reason).under("upstream")));
            }
        }
        misfits
    }

    /// Whether the library knows what is listed: it is the one that can say.
    fn cipher_lists(&self) -> Result<(), SettingError> {
        let CipherPolicy { ciphers, tls13_ciphers, groups } = self.tls.ciphers.clone();
        let none = CipherPolicy::default;
        let lists = [
            ("ciphers", CipherPolicy { ciphers, ..none() }),
            ("tls13_ciphers", CipherPolicy { tls13_ciphers, ..none() }),
            ("groups", CipherPolicy { groups, ..none() }),
        ];
        for (key, ciphers) in lists {
            let config = ConnectorConfig { ciphers, ..ConnectorConfig::new(Trust::Anyone) };
            Connector::new(config).map_err(|error| SettingError::new(key, error.to_string()))?;
        }
        Ok(())
    }

    fn ticket_keys(&self) -> Result<(), SettingError> {
        match &self.tickets.keys {
            KeySource::Process => Ok(()),
            KeySource::File(path) => {
                let read = KeyFile::new(path).read();
                read.map(drop).map_err(|error| SettingError::new("file", error.to_string()))
            }
            KeySource::Store { key_encryption, .. } => {
                let open = KeyEncryption::open(key_encryption);
                let wrong = |error: String| SettingError::new("key_encryption_file", error);
                open.map(drop).map_err(|error| wrong(error.to_string()))
            }
        }
    }

    fn token(&self) -> Result<(), SettingError> {
        let Some(path) = self.admin.as_ref().and_then(|admin| admin.token_file.as_ref()) else {
            return Ok(());
        };
        let shown = path.display();
        let wrong = |reason: String| Err(SettingError::new("token_file", reason));
        match read_secret_file(path) {
            Ok((text, _)) if text.trim().is_empty() => {
                wrong(format!("{shown} has no token; make one, as by `openssl rand -hex 32`"))
            }
            Ok(_) => Ok(()),
            Err(SecretFileError::ReadableByOthers(mode)) => wrong(format!(
                "the token in {shown} can be read by others (mode {mode:03o}); run `chmod 600 \
                 {shown}`"
            )),
            Err(SecretFileError::Read(reason)) => {
                wrong(format!("cannot read the token in {shown}: {reason}; give a readable file"))
            }
            Err(SecretFileError::TooLong) => wrong(format!("{shown} is too long for a token")),
        }
    }

    fn store_authorities(&self) -> Result<(), SettingError> {
        let tls = self.store.as_ref().and_then(|store| store.tls.as_ref());
        match tls.and_then(|tls| tls.ca_file.as_ref()) {
            Some(path) => authorities(path).map_err(|reason| SettingError::new("ca_file", reason)),
            None => Ok(()),
        }
    }
}

fn certificate(source: &CertificateSource) -> Result<(), SettingError> {
    match source {
        CertificateSource::Files { cert, key } => {
            let read = Identity::from_files(cert, key);
            read.map(drop).map_err(|error| SettingError::new("certificate", error.to_string()))
        }
        CertificateSource::Development
        | CertificateSource::SelfSigned { .. }
        | CertificateSource::Acme => Ok(()),
    }
}

pub(crate) fn authorities(path: &Path) -> Result<(), String> {
    let trust = Trust::File(path.to_owned());
    Connector::new(ConnectorConfig::new(trust)).map(drop).map_err(|error| error.to_string())
}

fn site_files(site: &Site) -> Vec<SettingError> {
    let mut misfits = Vec::new();
    if let Some(source) = &site.certificate {
        misfits.extend(certificate(source).err());
    }
    if let Some(path) = &site.ocsp {
        let read = readable(path, "the OCSP response", "give a DER file");
        misfits.extend(read.err().map(|reason| SettingError::new("ocsp", reason)));
    }
    for (at, route) in site.routes.iter().enumerate() {
        if let Action::Files(files) = &route.action {
            let misfit =
                directory(&files.root).err().map(|reason| SettingError::new("root", reason));
            misfits.extend(misfit.map(|misfit| misfit.under_index("route", at)));
        }
    }
    misfits
}

fn directory(path: &Path) -> Result<(), String> {
    let wrong = |reason: String| {
        format!("cannot serve {}: {reason}; give a readable directory", path.display())
    };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            fs::read_dir(path).map(drop).map_err(|error| wrong(error.to_string()))
        }
        Ok(_) => Err(wrong("it is no directory".to_owned())),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn readable(path: &Path, what: &str, mend: &str) -> Result<(), String> {
    match File::open(path) {
        Ok(_) => Ok(()),
        Err(reason) => Err(format!("cannot read {what} {}: {reason}; {mend}", path.display())),
    }
}
