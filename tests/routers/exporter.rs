//! STAND-IN
use crate::router::Router;
use std::collections::BTreeMap;
use crate::events::Exported;

pub struct Exporter { base: BTreeMap<String, f64>, carry: BTreeMap<String, f64>, exports: &'static [Exported] }
impl Exporter {
    pub fn new(exports: &'static [Exported]) -> Self { Self { base: BTreeMap::new(), carry: BTreeMap::new(), exports } }
    pub async fn raw(&self, router: &Router) -> BTreeMap<String, f64> {
        let s = router.samples().await.unwrap();
        self.exports.iter().map(|e| (e.family.to_owned(), s.iter().filter(|s| s.name == e.source && (e.family != "http_5xx_responses" || s.label("status_code").starts_with('5'))).map(|s| s.value).sum::<f64>())).collect()
    }
    pub async fn totals(&self, router: &Router) -> BTreeMap<String, f64> { self.raw(router).await }
}
