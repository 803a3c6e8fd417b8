package main

import (
	"net/http"
	"runtime"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
)

const (
	plain      = "application/json"
	aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	// minor is the newest version that no peer warns about.
	minor = "35"
)

// discovery says what there is: one resource, in the core group or in its own.
func (a *api) discovery(mux *http.ServeMux) {
	tell := func(path string, what, all any) {
		handle := func(w http.ResponseWriter, r *http.Request) {
			if all != nil && strings.Contains(strings.ReplaceAll(r.Header.Get("Accept"), " ", ""), "v=v2;as=APIGroupDiscoveryList") {
				answer(w, http.StatusOK, aggregated, all)
				return
			}
			answer(w, http.StatusOK, plain, what)
		}
		mux.HandleFunc("GET "+path, handle)
		mux.HandleFunc("GET "+path+"/{$}", handle) // as kr8s asks
	}
	version := apiversion.Info{
		Major: "1", Minor: minor, GitVersion: "v1." + minor + ".0-bench", GoVersion: runtime.Version(), Compiler: runtime.Compiler,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	tell("/version", version, nil)
	core := a.kind.group == ""
	tell("/api", metav1.APIVersions{TypeMeta: listMeta("APIVersions"), Versions: []string{"v1"}}, a.aggregated(core))
	groups := metav1.APIGroupList{TypeMeta: listMeta("APIGroupList"), Groups: []metav1.APIGroup{}}
	served := metav1.APIResource{Name: a.kind.resource, SingularName: a.kind.singular, Namespaced: true, Kind: a.kind.name, Verbs: a.verbs()}
	inCore := []metav1.APIResource{theNamespaces, served}
	own := []metav1.APIResource{served}
	if a.kind.status {
		own = append(own, metav1.APIResource{Name: a.kind.resource + "/status", Namespaced: true, Kind: a.kind.name, Verbs: statusVerbs})
	}
	if !core {
		inCore = inCore[:1]
		groups.Groups = append(groups.Groups, a.group())
		tell("/apis/"+a.kind.group, groups.Groups[0], nil)
		tell("/apis/"+a.kind.apiVersion(), resourceList(a.kind.apiVersion(), own...), nil)
	}
	tell("/api/v1", resourceList("v1", inCore...), nil)
	tell("/apis", groups, a.aggregated(!core))
}

// theNamespaces are in every cluster: kopf waits until it has discovered them, even if it asks for none.
var theNamespaces = metav1.APIResource{Name: "namespaces", SingularName: "namespace", Kind: "Namespace", Verbs: verbs}

func resourceList(groupVersion string, resources ...metav1.APIResource) metav1.APIResourceList {
	return metav1.APIResourceList{TypeMeta: listMeta("APIResourceList"), GroupVersion: groupVersion, APIResources: resources}
}

var verbs, statusVerbs = []string{"list", "watch"}, []string{"patch"}

// verbs has "patch" for a kind with a status: kopf handles changes only of what it can patch, though it patches the status alone.
func (a *api) verbs() []string {
	if a.kind.status {
		return []string{"list", "watch", "patch"}
	}
	return verbs
}

func listMeta(kind string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: "v1"} }

func (a *api) group() metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{GroupVersion: a.kind.apiVersion(), Version: a.kind.version}
	return metav1.APIGroup{
		TypeMeta: listMeta("APIGroup"), Name: a.kind.group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
}

// aggregated is discovery in one answer: of the core group from /api, of the others from /apis.
func (a *api) aggregated(here bool) apidiscovery.APIGroupDiscoveryList {
	told := apidiscovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}, Items: []apidiscovery.APIGroupDiscovery{},
	}
	if !here {
		return told
	}
	var subresources []apidiscovery.APISubresourceDiscovery
	if a.kind.status {
		subresources = append(subresources, apidiscovery.APISubresourceDiscovery{
			Subresource: "status", Verbs: statusVerbs, ResponseKind: a.responseKind(),
		})
	}
	told.Items = append(told.Items, apidiscovery.APIGroupDiscovery{
		ObjectMeta: metav1.ObjectMeta{Name: a.kind.group},
		Versions: []apidiscovery.APIVersionDiscovery{{
			Version: a.kind.version, Freshness: apidiscovery.DiscoveryFreshnessCurrent,
			Resources: []apidiscovery.APIResourceDiscovery{{
				Resource: a.kind.resource, SingularResource: a.kind.singular, Scope: apidiscovery.ScopeNamespace, Verbs: a.verbs(),
				ResponseKind: a.responseKind(), Subresources: subresources,
			}},
		}},
	})
	return told
}

func (a *api) responseKind() *metav1.GroupVersionKind {
	return &metav1.GroupVersionKind{Group: a.kind.group, Version: a.kind.version, Kind: a.kind.name}
}
