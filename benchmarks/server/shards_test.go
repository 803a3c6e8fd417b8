package main

import (
	"net/http"
	"net/url"
	"testing"
)

const (
	lower = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
	upper = "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"
)

func TestEachObjectIsInOneShard(t *testing.T) {
	for _, kind := range []string{"pods", "customs"} {
		api := newAPI(kinds[kind], 200, testSeed, "secret")
		api.selectByShards()
		b := serve(t, api, true)
		everything, _ := b.pages(1000, nil)
		whole := stateOf(everything)
		found := 0
		for _, selector := range []string{lower, upper} {
			query := "shardSelector=" + url.QueryEscape(selector)
			page := read[seen](t, b.get(query).Body)
			if info := page.Metadata.ShardInfo; (info != nil) != b.api.kind.typed || info != nil && info.Selector != selector {
				t.Errorf("a list of %s is of %v", kind, info)
			}
			part := stateOf(page.Items)
			if len(part) < 60 {
				t.Errorf("%d of 200 %s", len(part), kind)
			}
			for key := range part {
				if _, there := whole[key]; !there {
					t.Errorf("%s is in two shards, or in none", key)
				}
				delete(whole, key)
			}
			found += len(page.Items)
			paged := []seen{}
			for more := ""; ; {
				next := read[seen](t, b.get(query+"&limit=7&continue="+more).Body)
				paged = append(paged, next.Items...)
				if more = next.Metadata.Continue; more == "" {
					break
				}
				if len(next.Items) != 7 {
					t.Errorf("%d items on a page of 7", len(next.Items))
				}
			}
			equal(t, stateOf(paged), part)
			events := b.watch(query + "&resourceVersion=0")
			for range part {
				told := next(t, events)
				if _, there := part[told.Object.Metadata.Namespace+"/"+told.Object.Metadata.Name]; !there || told.Type != "ADDED" {
					t.Fatalf("%v is not of this shard", told)
				}
			}
			b.post("/modify?count=200")
			version := page.Metadata.ResourceVersion
			play(t, events, part, version, len(part))
			after := read[seen](t, b.get(query).Body)
			equal(t, part, stateOf(after.Items))
		}
		if found != 200 {
			t.Errorf("%d of 200 %s in both shards", found, kind)
		}
		if both := read[seen](t, b.get("shardSelector="+url.QueryEscape(lower+" || "+upper)).Body); len(both.Items) != 200 {
			t.Errorf("%d of 200 %s in a list of both shards", len(both.Items), kind)
		}
		if answer := b.get("shardSelector=x"); answer.StatusCode != http.StatusInternalServerError {
			t.Errorf("no selector is answered with %d", answer.StatusCode)
		}
	}
}

func TestWithoutTheFeatureASelectorIsIgnored(t *testing.T) {
	b := start(t, "leases", 30, true)
	if page := read[seen](t, b.get("shardSelector="+url.QueryEscape(lower)).Body); len(page.Items) != 30 || page.Metadata.ShardInfo != nil {
		t.Errorf("%d items of %v", len(page.Items), page.Metadata.ShardInfo)
	}
}
