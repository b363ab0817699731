//! The files that a configuration names.

use std::path::PathBuf;

use crate::{CertificateSource, Content, ServerConfig};

impl ServerConfig {
    /// The files that a reload reads again: certificates, their keys, OCSP responses, the
    /// operators' token. Those of ticket keys are followed by themselves.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut certificates = vec![&self.certificate];
        let mut files = Vec::new();
        if let Content::Sites(content) = &self.content {
            for site in &content.sites {
                certificates.extend(&site.certificate);
                files.extend(site.ocsp.clone());
            }
        }
        for source in certificates {
            if let CertificateSource::Files { cert, key } = source {
                files.extend([cert.clone(), key.clone()]);
            }
        }
        files.extend(self.admin.as_ref().and_then(|admin| admin.token_file.clone()));
        files
    }
}
