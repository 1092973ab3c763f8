package main

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// sites reads and writes Sites as generated clients do.
type sites struct {
	rest  rest.Interface
	codec runtime.ParameterCodec
}

func newSites(config *rest.Config, scheme *runtime.Scheme) (*sites, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &groupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &sites{rest: client, codec: runtime.NewParameterCodec(scheme)}, nil
}

func (s *sites) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	found := &SiteList{}
	err := s.rest.Get().Resource("sites").VersionedParams(&options, s.codec).Do(ctx).Into(found)
	return found, err
}

func (s *sites) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return s.rest.Get().Resource("sites").VersionedParams(&options, s.codec).Watch(ctx)
}

func (s *sites) updateStatus(ctx context.Context, site *Site) (*Site, error) {
	written := &Site{}
	err := s.rest.Put().Namespace(site.Namespace).Resource("sites").Name(site.Name).SubResource("status").
		VersionedParams(&metav1.UpdateOptions{}, s.codec).Body(site).Do(ctx).Into(written)
	return written, err
}

func (s *sites) informer() cache.SharedIndexInformer {
	lists := &cache.ListWatch{ListWithContextFunc: s.list, WatchFuncWithContext: s.watch}
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, s.rest), &Site{}, 0, indexers)
}
